"""The catalogue: parameters against published numbers, KV bytes, parallel splits, names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.model import load_model, model_names
from kvsim.model.catalogue import entry

KIB = 1024

PROMISED = """
llama-2-7b llama-2-13b llama-2-70b llama-3.2-1b llama-3.2-3b llama-3-8b llama-3.1-8b llama-3-70b llama-3.1-70b
llama-3.3-70b llama-3.1-405b mistral-7b mistral-small-24b mixtral-8x7b qwen2.5-7b qwen2.5-14b qwen2.5-32b qwen2.5-72b
qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b qwen3-30b-a3b deepseek-v2-lite deepseek-v3 gemma-2-2b
gemma-2-9b gemma-2-27b gemma-3-1b gemma-3-4b gemma-3-12b gemma-3-27b gpt-oss-20b gpt-oss-120b phi-4 opt-2.7b opt-6.7b
opt-13b opt-30b opt-66b opt-175b gpt-j-6b bloom-176b codellama-34b llama-7b llama-13b llama-65b internlm2-7b
smollm2-135m qwen2-7b qwen2-72b qwen3-235b-a22b deepseek-r1 mixtral-8x22b yi-34b falcon-40b falcon-180b command-r-plus
glm-4.5 kimi-k2 llama-4-scout
"""

@pytest.mark.parametrize("name", model_names())
def test_parameters_are_the_published_ones(name: str) -> None:
    published = entry(name)
    assert published["published_in"], "every number says where it was published"
    assert load_model(name).parameters == pytest.approx(published["published_parameters"], rel=0.005)


# Rounded figures as model cards and papers print them, independent of the catalogue's own files.
@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama-2-70b", 69.0, 69.0),
        ("llama-3.1-405b", 406, 406),
        ("mixtral-8x7b", 46.7, 12.9),
        ("mixtral-8x22b", 141, 39),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235, 22),
        ("deepseek-v3", 671, 37),
        ("kimi-k2", 1026, 32.6),
        ("llama-4-scout", 109, 17),
        ("gpt-oss-20b", 20.91, 4.19),  # the card's 3.61 leaves the embedding out
        ("opt-175b", 175, 175),
        ("gemma-3-27b", 27.4, 27.0),
    ],
)
def test_total_and_active_parameters(name: str, billions: float, active: float) -> None:
    model = load_model(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", PROMISED.split())
def test_every_promised_model_is_there(name: str) -> None:
    assert load_model(name).name == name


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("opt-13b", 800 * KIB),
        ("llama-2-7b", 512 * KIB),
        ("llama-3-8b", 128 * KIB),
        ("llama-3.1-8b", 128 * KIB),
        ("llama-3-70b", 320 * KIB),
        ("qwen2.5-7b", 56 * KIB),
        ("falcon-7b", 8 * KIB),  # one KV head for 71
        ("deepseek-v2-lite", 576 * 2 * 27),
        ("deepseek-v3", 576 * 2 * 61),
        ("deepseek-v3.2", (576 * 2 + 128 + 4) * 61),  # and the indexer's fp8 key with its scale
        ("gpt-oss-120b", 72 * KIB),
        ("gemma-4-31b", (10 * 4 * 512 + 50 * 16 * 256) * 2 * 2),
    ],
)
def test_kv_bytes_of_a_token(name: str, size: int) -> None:
    assert load_model(name).kv_bytes_per_token("bf16") == size


def test_kv_heads_are_replicated_when_tp_exceeds_them() -> None:
    model = load_model("llama-3-70b")  # 8 KV heads
    assert [model.kv_bytes_per_token(tp=tp) for tp in (1, 2, 8, 16, 32)] == [
        320 * KIB, 160 * KIB, 40 * KIB, 40 * KIB, 40 * KIB,
    ]  # fmt: skip
    qkv = {tp: model.linear_ops(tp)[0].n for tp in (8, 16)}
    assert qkv == {8: 8 * 128 + 2 * 128, 16: 4 * 128 + 2 * 128}


def test_mla_rows_are_replicated() -> None:
    model = load_model("deepseek-v3")
    assert model.kv_bytes_per_token(tp=8) == model.kv_bytes_per_token(tp=1)


def test_windows_bound_what_a_request_holds() -> None:
    gemma = load_model("gemma-3-27b")
    assert [(g.window, g.layers) for g in gemma.attention_groups] == [(0, 10), (1024, 52)]
    layer = 2 * 16 * 128 * 2
    assert gemma.kv_bytes_per_request(8192) == layer * (10 * 8192 + 52 * 1024)
    assert gemma.kv_bytes_per_request(500) == layer * 62 * 500
    assert [(g.window, g.layers) for g in load_model("gpt-oss-20b").attention_groups] == [(0, 12), (128, 12)]
    assert [(g.window, g.layers) for g in load_model("mistral-7b").attention_groups] == [(4096, 32)]
    assert [(g.window, g.layers) for g in load_model("qwen2.5-72b").attention_groups] == [(0, 80)]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "opt-13b", "qwen3-30b-a3b", "deepseek-v3", "gemma-4-31b", "gpt2"])
def test_matrix_products_and_weights_tell_the_same_story(name: str) -> None:
    model = load_model(name)
    products = sum(op.n * op.k * op.layers * op.experts for op in model.linear_ops())
    vectors = sum(m.n * m.count for m in model.matrices() if m.kind == "vector")
    embedding = 0 if model.tied_embeddings else model.vocab * model.hidden
    assert products + vectors + embedding + model.positions * model.hidden == model.parameters
    assert model.weights_bytes("bf16") == 2 * model.parameters
    assert [op.rows for op in model.linear_ops()].count("sampled") == 1


@pytest.mark.parametrize("name", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"])
def test_tensor_parallel_splits_what_it_can(name: str) -> None:
    model = load_model(name)
    whole, shard = model.weights_bytes("bf16"), model.weights_bytes("bf16", tp=8)
    assert whole / 8 < shard < whole / 8 * 1.06  # norms, routers and MLA's down projections are on every GPU


def test_pipeline_stages_share_the_layers() -> None:
    model = load_model("opt-66b")
    assert model.kv_bytes_per_token(pp=4) == model.kv_bytes_per_token() // 4
    assert 1 < model.weights_bytes(pp=4) / (model.weights_bytes() / 4) < 1.03  # one has all of the embedding


def test_expert_parallel_holds_whole_experts() -> None:
    model = load_model("qwen3-30b-a3b")
    (expert,) = [op for op in model.linear_ops(tp=2, ep=2) if op.name == "expert_gate_up"]
    assert (expert.n, expert.experts) == (2 * 768, 64)
    (expert,) = [op for op in model.linear_ops(tp=2) if op.name == "expert_gate_up"]
    assert (expert.n, expert.experts) == (768, 128)


@pytest.mark.parametrize(
    ("name", "dtype", "gib"),
    [
        ("llama-3.1-8b", "bf16", 14.96),
        ("llama-3.1-8b", "fp8", 8.46),  # not half: embedding and head stay 16-bit
        ("phi-4", "int4", 8.51),  # vLLM's start-up log of the GPTQ checkpoint
        ("llama-3.3-70b", "fp8", 67.7),  # likewise, FP8
        ("gpt-oss-120b", "mxfp4", 60.8),  # the checkpoint's size: only experts are 4-bit
    ],
)
def test_quantised_weights(name: str, dtype: str, gib: float) -> None:
    assert load_model(name).weights_bytes(dtype) / 2**30 == pytest.approx(gib, rel=0.003)


def test_padded_experts() -> None:
    """gpt-oss-120b takes 65.97 GiB on kernels that want multiples of 256 and 128 (published start-up log)."""
    assert load_model("gpt-oss-120b").weights_bytes(expert_pad=(256, 128)) / 2**30 == pytest.approx(65.97, rel=0.003)


@pytest.mark.parametrize(
    ("asked", "name", "dtype"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b", "bf16"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b", "fp16"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", "bf16"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b", "bf16"),
        ("google/gemma-3-27b-it", "gemma-3-27b", "bf16"),
        ("internlm2-chat-7b", "internlm2-7b", "bf16"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", "fp8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8"),
        ("TheBloke/Llama-2-13B-AWQ", "llama-2-13b", "int4"),
        ("Llama-3.1-8B", "llama-3.1-8b", "bf16"),
    ],
)
def test_variants_resolve(asked: str, name: str, dtype: str) -> None:
    model = load_model(asked)
    assert (model.name, model.weights_dtype) == (name, dtype)


def test_unknown_names_suggest() -> None:
    with pytest.raises(InputError, match=r"unknown model 'lama-3\.1-8b': did you mean llama-3\.1-8b"):
        load_model("lama-3.1-8b")
    with pytest.raises(InputError, match="there is no file"):
        load_model("missing/config.json")


@pytest.mark.shared
def test_every_model_of_the_measurements_is_known(shared: Path) -> None:
    cases = (json.loads(line) for line in (shared / "measured" / "cases.jsonl").read_text().splitlines())
    for name in {case["model_id"] for case in cases} - {None}:
        assert load_model(name).name == name


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"tp": 3}, "32 attention heads of llama-3.1-8b can't be split evenly"),
        ({"tp": 0}, "can't be split"),
        ({"pp": 33}, "32 layers; use 1 to 32 stages"),
        ({"ep": 2}, "has no experts; use 1"),
    ],
)
def test_impossible_splits(split: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model("llama-3.1-8b").weights_bytes(**split)
