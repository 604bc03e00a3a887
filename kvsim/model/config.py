"""A Hugging Face `config.json` → ModelSpec. What differs by family stands in `families.py`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.model.families import DEFAULTS, traits
from kvsim.model.reader import Reader
from kvsim.model.spec import AttentionGroup, Mla, ModelSpec, Moe
from kvsim.model.windows import windows

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_NO_CACHE_LAYERS = ("mamba_d_state", "ssm_cfg", "hybrid_override_pattern", "linear_num_key_heads", "rwkv_version",
                    "mamba_expand", "attn_type_list", "num_kv_shared_layers")  # fmt: skip


def read_config(path: Path, name: str | None = None) -> ModelSpec:
    """A `config.json`, or a folder that holds one, → ModelSpec. Raises InputError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"--model {path}: there is no file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} can't be read: {error}") from None
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}") from None
    return from_config(data, name or _name(file, data), str(file))


def from_config(data: object, name: str, where: str = "config") -> ModelSpec:
    """A config's content → ModelSpec; `where` names it in messages.

    A model_type that is not known is read as Llama-like (gated MLP, two RMS norms, no biases) and provenance says so.
    Raises InputError for missing or impossible values, and for models whose layers keep no KV cache (Mamba …).
    """
    if not isinstance(data, dict):
        raise InputError(f"{where} is not a model config: it must be a JSON object with keys such as hidden_size")
    outer: dict[str, Any] = data
    inner = next((outer[part] for part in _TEXT_PARTS if isinstance(outer.get(part), dict)), outer)
    config = {**{k: outer[k] for k in ("quantization_config", "torch_dtype", "dtype") if k in outer}, **inner}
    for part in ("attn_config", "ffn_config"):  # DBRX, MPT
        config = {**(config.get(part) or {}), **config}
    if "tie_word_embeddings" in outer:
        config.setdefault("tie_word_embeddings", outer["tie_word_embeddings"])
    kind = str(config.get("model_type", "unknown"))
    config = {**DEFAULTS.get(kind, {}), **config}
    config["model_type"] = kind = DEFAULTS.get(kind, {}).get("model_type", kind)
    _refuse_unmodelled(config, where)

    read = Reader(config, where)
    family, known = traits(config)
    layers = read.count("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = read.count("hidden_size", "n_embd", "n_embed", "d_model")
    heads = read.count("num_attention_heads", "n_head", "n_heads", "num_heads")
    head_dim = read.count("head_dim", "kv_channels", "attention_head_dim", default=max(1, hidden // heads))
    if "head_dim" not in config and "kv_channels" not in config and hidden % heads:
        raise InputError(f"{where}: hidden_size {hidden} is no multiple of the {heads} attention heads; set head_dim")
    inter = read.count("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "inner_hidden_size",
                       default=4 * hidden) // (2 if family.halves_inter else 1)
    max_len = _max_model_len(read)
    mla = _mla(read)
    kv_heads = heads if mla else family.kv_heads(read, heads)
    if heads % kv_heads and not mla:
        raise InputError(f"{where}: {heads} attention heads are not a multiple of {kv_heads} KV heads")
    moe = None if family.dense_only else _moe(read, layers, inter)
    vision = outer.get("vision_config")
    learned = read.count("max_position_embeddings", "n_positions") + family.position_offset if family.learned else 0
    embedding = read.count("word_embed_proj_dim", default=hidden)
    return ModelSpec(
        name=name,
        family=kind,
        layers=layers,
        hidden=hidden,
        vocab=read.count("vocab_size", "padded_vocab_size"),
        max_model_len=max_len,
        attention_groups=_groups(read, windows(config, layers, max_len, where), heads, kv_heads, head_dim, mla),
        inter=read.count("intermediate_size_mlp", default=inter),
        gated=family.gated,
        mla=mla,
        moe=moe,
        tied_embeddings=bool(config.get("tie_word_embeddings", family.tied)),
        positions=learned,
        embedding_dim=0 if embedding == hidden else embedding,
        layer_vectors=family.layer_vectors(read, hidden, heads, kv_heads, head_dim, inter if moe is None else 0)
        + (mla.q_lora_rank + mla.kv_lora_rank + 2 * mla.index_dim if mla else 0),
        expert_vectors=family.expert_vectors(moe, hidden),
        other_vectors=family.other_vectors(read, hidden),
        other_parameters=_vision_parameters(vision, hidden, str(outer.get("model_type", ""))),
        rotary_channels=0 if family.learned or family.alibi else _rotary(read, mla, head_dim),
        key_is_value=bool(config.get("attention_k_eq_v", False)),
        weights_dtype=_weights_dtype(config),
        provenance=where if known else f"{where}, read as Llama-like: model_type {kind!r} is not known",
    )


def _name(file: Path, data: object) -> str:
    repo = data.get("_name_or_path") if isinstance(data, dict) else None
    return str(repo) if repo else (file.resolve().parent.name if file.name == "config.json" else file.stem)


def _refuse_unmodelled(config: dict[str, Any], where: str) -> None:
    kind = config.get("model_type", "this model")
    if config.get("is_encoder_decoder"):
        raise InputError(f"{where}: {kind} is an encoder-decoder; kvsim models decoder-only transformers")
    attention = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
    types = set(config.get("layer_types") or ()) - attention
    marks = [key for key in _NO_CACHE_LAYERS if config.get(key)]
    if types or marks:
        raise InputError(f"{where}: {kind} has layers without a KV cache of their own "
                         f"({', '.join(sorted(map(str, types)) or marks)}), which kvsim doesn't model")


def _max_model_len(read: Reader) -> int:
    """Longest context, with rotary scaling as vLLM applies it: linear and dynamic stretch the stated length, yarn the
    original one; llama3, longrope and Gemma 3 state the stretched length already."""
    length = read.count("model_max_length", "max_position_embeddings", "n_positions", "seq_length", "max_seq_len",
                        "max_sequence_length", "n_ctx", default=2048)
    scaling = read.config.get("rope_scaling") or read.config.get("rope_parameters")
    if not isinstance(scaling, dict) or not isinstance(scaling.get("factor"), (int, float)):
        return length
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "dynamic") and not str(read.config.get("model_type")).startswith("gemma3"):
        return int(length * scaling["factor"])
    original = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int):
        return max(length, int(original * scaling["factor"]))
    return length


def _mla(read: Reader) -> Mla | None:
    if not read.config.get("kv_lora_rank"):
        return None
    return Mla(
        q_lora_rank=read.count("q_lora_rank", default=0),
        kv_lora_rank=read.count("kv_lora_rank"),
        nope_dim=read.count("qk_nope_head_dim"),
        rope_dim=read.count("qk_rope_head_dim"),
        value_dim=read.count("v_head_dim"),
        index_heads=read.count("index_n_heads", default=0),
        index_dim=read.count("index_head_dim", default=0),
    )


def _moe(read: Reader, layers: int, inter: int) -> Moe | None:
    experts = read.count("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", default=0)
    if experts < 2:
        return None
    top_k = read.count("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_k", "top_k")
    if top_k > experts:
        raise InputError(f"{read.where}: num_experts_per_tok {top_k} exceeds the {experts} experts")
    size = read.count("moe_intermediate_size", "expert_ffn_hidden_size", default=inter)
    shared = read.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0)
    width = read.count("shared_expert_intermediate_size", "shared_intermediate_size", default=shared * size)
    if read.config.get("model_type") in ("llama4", "llama4_text"):
        width = size  # one shared expert of the routed ones' size
    step = read.count("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", default=1) or 1
    first = read.count("first_k_dense_replace", default=0)
    dense = set(read.config.get("mlp_only_layers") or ())
    offset = 0 if "moe_layer_freq" in read.config else step - 1
    sparse = [i for i in range(first, layers) if i % step == offset % step and i not in dense]
    return Moe(len(sparse), experts, top_k, size, width) if sparse else None


def _groups(
    read: Reader, per_layer: list[int], heads: int, kv_heads: int, head_dim: int, mla: Mla | None
) -> tuple[AttentionGroup, ...]:
    counts = Counter(per_layer)
    order = sorted(counts, key=lambda window: (window > 0, -window))
    if mla:
        row = mla.kv_lora_rank + mla.rope_dim
        return tuple(
            AttentionGroup(w, counts[w], heads, 1, row, mla.kv_lora_rank, latent=True, index_dim=mla.index_dim)
            for w in order
        )
    value_dim = read.count("v_head_dim", default=head_dim)
    groups = []
    for window in order:
        kv, key = kv_heads, head_dim
        if window == 0 and len(counts) > 1:  # Gemma 4: full layers have their own geometry
            kv = read.count("num_global_key_value_heads", default=kv_heads)
            key = read.count("global_head_dim", default=head_dim)
        groups.append(AttentionGroup(window, counts[window], heads, kv, key, value_dim if key == head_dim else key))
    return tuple(groups)


def _rotary(read: Reader, mla: Mla | None, head_dim: int) -> int:
    if mla:
        return mla.rope_dim
    share = read.config.get("partial_rotary_factor", read.config.get("rotary_pct", 1.0))
    channels = read.count("rotary_dim", default=int(head_dim * share) if isinstance(share, (int, float)) else head_dim)
    tables = 2 if read.config.get("rope_local_base_freq") else 1  # Gemma 3: one for windows, one for full attention
    return channels * tables


def _vision_parameters(vision: object, hidden: int, family: str) -> int:
    """Parameters of a ViT and the projection to `hidden`, biases and norms left out (well under 1 % of it)."""
    if not isinstance(vision, dict) or "hidden_size" not in vision:
        return 0
    width, depth = int(vision["hidden_size"]), int(vision.get("num_hidden_layers", 0))
    inter = int(vision.get("intermediate_size", 4 * width))
    gates = 3 if family in ("mistral3", "pixtral") else 2
    patch = int(vision.get("patch_size", 14)) ** 2 * int(vision.get("num_channels", 3)) * width
    return depth * (4 * width * width + gates * width * inter) + patch + width * hidden


def _weights_dtype(config: dict[str, Any]) -> str:
    """The format the checkpoint's linear layers are stored in."""
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        method = str(quantised.get("quant_method", ""))
        if method in ("fp8", "fbgemm_fp8", "mxfp4", "nvfp4"):
            return "fp8" if "fp8" in method else method
        bits = quantised.get("bits", quantised.get("w_bit"))
        text = json.dumps(quantised)
        if bits is None and '"num_bits": 4' in text:
            return "nvfp4" if '"float"' in text else "int4"
        if bits is None and '"num_bits": 8' in text:
            return "fp8" if '"float"' in text else "int8"
        if "NVFP4" in text:
            return "nvfp4"
        if bits in (4, 8):
            return f"int{bits}"
    stored = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
    return {"float16": "fp16", "bfloat16": "bf16"}.get(stored, "bf16")  # engines serve fp32 checkpoints in 16 bits
