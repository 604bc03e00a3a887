"""config.json of odd families, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.model import from_config, load_model

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}  # fmt: skip

# Parameters as the repositories' safetensors metadata count them.
FAMILIES: list[tuple[int, int, dict[str, Any]]] = [
    (2_779_683_840, 320, {
        "model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "intermediate_size": 10240, "vocab_size": 51200, "max_position_embeddings": 2048,
        "partial_rotary_factor": 0.4, "tie_word_embeddings": False}),
    (6_243_584_000, 28, {
        "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696,
        "num_attention_heads": 32, "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
        "padded_vocab_size": 65024, "seq_length": 8192}),
    (14_315_784_192, 192, {
        "model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1,
        "vocab_size": 151936, "max_position_embeddings": 8192, "tie_word_embeddings": False}),
    (331_196_416, 96, {
        "model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
        "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
        "do_layer_norm_before": False}),
    (8_537_680_896, 448, {
        "model_type": "gemma", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 256, "intermediate_size": 24576, "vocab_size": 256000,
        "max_position_embeddings": 8192}),
    (6_919_161_856, 128, {
        "model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
        "vocab_size": 50304, "max_position_embeddings": 4096, "tie_word_embeddings": False}),
    (15_517_456_384, 20, {
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576,
        "n_positions": 8192, "vocab_size": 49152, "multi_query": True}),
    (6_649_286_656, 512, {
        "model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "max_seq_len": 2048,
        "vocab_size": 50432}),
    (3_030_371_328, 30, {
        "model_type": "starcoder2", "hidden_size": 3072, "num_hidden_layers": 30, "num_attention_heads": 24,
        "num_key_value_heads": 2, "intermediate_size": 12288, "vocab_size": 49152, "max_position_embeddings": 16384,
        "sliding_window": 4096}),
    (1_644_515_328, 192, {
        "model_type": "stablelm", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 5632, "vocab_size": 100352, "max_position_embeddings": 4096,
        "use_qkv_bias": True, "partial_rotary_factor": 0.25, "tie_word_embeddings": False}),
    (7_217_189_760, 8, {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
        "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024}),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "kib", "config"), FAMILIES, ids=[c["model_type"] for _, _, c in FAMILIES])
def test_families(parameters: int, kib: int, config: dict[str, Any]) -> None:
    model = from_config(config, "m")
    assert model.parameters == parameters
    assert model.kv_bytes_per_token() == kib * 1024


def test_falcon_groups_kv_heads_in_the_new_architecture() -> None:
    base = {"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
            "vocab_size": 65024}  # fmt: skip
    assert from_config({**base, "new_decoder_architecture": True, "num_kv_heads": 8}, "m").kv_heads == 8
    assert from_config({**base, "new_decoder_architecture": False, "multi_query": True}, "m").kv_heads == 1
    assert from_config({**base, "new_decoder_architecture": False, "multi_query": False}, "m").kv_heads == 128


def test_text_config_is_the_model_and_vision_is_memory() -> None:
    text = {**LLAMA, "model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 128,
            "intermediate_size_mlp": 8192, "attention_chunk_size": 4096, "interleave_moe_layer_step": 2}  # fmt: skip
    vision = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "patch_size": 14}
    model = from_config({"model_type": "llama4", "text_config": text, "vision_config": vision}, "m")
    assert [(g.window, g.layers) for g in model.attention_groups] == [(0, 8), (4096, 24)]
    assert model.moe is not None
    assert (model.moe.layers, model.moe.shared_inter, model.inter) == (16, 14336, 8192)
    assert model.other_parameters == 2 * (4 * 64 * 64 + 2 * 64 * 128) + 14 * 14 * 3 * 64 + 64 * 4096
    assert model.active_parameters < model.parameters - model.other_parameters


def test_gemma_3_files_leave_much_to_their_class() -> None:
    """google/gemma-3-4b-it states neither heads nor vocabulary, and a rotary factor that is applied already."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}  # fmt: skip
    known, model = load_model("gemma-3-4b"), from_config({"model_type": "gemma3", "text_config": text}, "m")
    assert model.parameters == known.parameters - known.other_parameters
    assert model.attention_groups == known.attention_groups
    assert model.max_model_len == known.max_model_len == 131072


def test_older_names_of_falcon() -> None:
    old = {"model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8,
           "vocab_size": 65024}  # fmt: skip
    assert from_config(old, "m").parameters == load_model("falcon-40b").parameters
    old = {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "multi_query": True,
           "vocab_size": 65024}  # fmt: skip
    assert from_config(old, "m").parameters == load_model("falcon-7b").parameters


def test_qwen_1_counts_gate_and_up_together() -> None:
    config = {"model_type": "qwen", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
              "intermediate_size": 22016, "kv_channels": 128, "vocab_size": 151936, "seq_length": 8192,
              "tie_word_embeddings": False}  # fmt: skip
    assert from_config(config, "m").parameters == 7_721_324_544  # Qwen-7B


def test_command_r_states_its_context_twice() -> None:
    config = {**LLAMA, "model_type": "cohere", "model_max_length": 131072}
    assert from_config(config, "m").max_model_len == 131072


def test_layer_types_give_the_windows() -> None:
    config = {**LLAMA, "num_hidden_layers": 4, "sliding_window": 512,
              "layer_types": ["full_attention", *["sliding_attention"] * 3]}  # fmt: skip
    assert [(g.window, g.layers) for g in from_config(config, "m").attention_groups] == [(0, 1), (512, 3)]
    short = {**config, "layer_types": ["full_attention"]}
    with pytest.raises(InputError, match="layer_types has 1 entries for 4 layers"):
        from_config(short, "m")


@pytest.mark.parametrize(
    ("keys", "groups"),
    [
        ({"sliding_window": 4096}, [(4096, 32)]),
        ({"sliding_window": 4096, "use_sliding_window": False}, [(0, 32)]),
        ({"sliding_window": 8192}, [(0, 32)]),  # as long as the context
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, [(0, 28), (4096, 4)]),
        ({"sliding_window": 4096, "model_type": "gemma2"}, [(0, 16), (4096, 16)]),
        ({"sliding_window": 1024, "model_type": "gemma3_text"}, [(0, 5), (1024, 27)]),
        ({"sliding_window": 4096, "sliding_window_pattern": "LLLG", "model_type": "exaone4"}, [(0, 8), (4096, 24)]),
    ],
)
def test_windows(keys: dict[str, Any], groups: list[tuple[int, int]]) -> None:
    model = from_config({**LLAMA, **keys}, "m")
    assert [(g.window, g.layers) for g in model.attention_groups] == groups


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"type": "linear", "factor": 4.0}, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024}, 8192),
    ],
)
def test_rotary_scaling_stretches_the_context(scaling: dict[str, Any], length: int) -> None:
    assert from_config({**LLAMA, "rope_scaling": scaling}, "m").max_model_len == length


@pytest.mark.parametrize(
    ("quantisation", "dtype"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "awq", "w_bit": 4}, "int4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},
         "int8"),
    ],
)  # fmt: skip
def test_stored_precision(quantisation: dict[str, Any] | None, dtype: str) -> None:
    extra = {} if quantisation is None else {"quantization_config": quantisation}
    assert from_config({**LLAMA, **extra}, "m").weights_dtype == dtype


def test_unknown_family_is_read_as_llama_and_says_so() -> None:
    model = from_config({**LLAMA, "model_type": "brandnew"}, "m", "x/config.json")
    assert model.parameters == load_model("llama-3-8b").parameters
    assert "read as Llama-like" in model.provenance


def test_a_folder_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        model = load_model(path)
        assert model.kv_bytes_per_token() == 128 * 1024
        assert model.name == tmp_path.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1; it must be a whole number from 1"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'"),
        ({"vocab_size": float("nan")}, "vocab_size is nan"),
        ({"num_attention_heads": 30}, "hidden_size 4096 is no multiple of the 30 attention heads"),
        ({"num_key_value_heads": 5}, "32 attention heads are not a multiple of 5 KV heads"),
        ({"sliding_window": -5}, "sliding_window is -5"),
        ({"num_local_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok 8 exceeds the 4 experts"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"mamba_d_state": 16}, "without a KV cache"),
        ({"layer_types": ["linear_attention"] * 32}, "linear_attention"),
        ({"num_hidden_layers": 10**12}, "must be a whole number"),
    ],
)
def test_bad_configs(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_config({**LLAMA, **changes}, "m", "config.json")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    bad = tmp_path / "config.json"
    for text, message in (("{", "is not JSON"), ("[1]", "is not a model config"), ("{}", "is missing")):
        bad.write_text(text)
        with pytest.raises(InputError, match=message):
            load_model(bad)
