"""What the cost model takes from a model's configuration, and of it what a GPU of several reads."""

from __future__ import annotations

import pytest
from cost_cases import decoding

from kvsim.cost import CostModel
from kvsim.device import load_device
from kvsim.model import load_model, model_names


@pytest.mark.parametrize("name", model_names())
def test_every_model_has_a_cost(name: str) -> None:
    model = load_model(name)
    cost = CostModel.of(model, load_device("h200-sxm"))
    shape = cost.typical()
    floor = 2 * (model.active_parameters - model.vocab * model.hidden * 2) * shape.tokens / 1979e12 * 1e9
    assert floor < cost.step(shape) < 60e9
    assert len(cost.parts(shape)) >= 7


def test_a_split_model_reads_its_share() -> None:
    model, device = load_model("llama-3.1-70b"), load_device("h100-sxm")
    one, eight = CostModel.of(model, device), CostModel.of(model, device, tp=8)
    shape = decoding(16, 2000)
    assert eight.parts(shape)["linear"].ns < one.parts(shape)["linear"].ns / 5
    assert eight.geometry.attention[0].decode.kv_heads == 1


def test_experts_of_others_are_not_read() -> None:
    model, device = load_model("qwen3-30b-a3b"), load_device("h100-sxm")
    shape = decoding(128, 500)
    alone, shared, fed = (CostModel.of(model, device, ep=ep, dp=dp).parts(shape)["experts"].ns
                          for ep, dp in ((1, 1), (2, 1), (2, 2)))
    assert shared < fed < alone


def test_latent_cache_is_read_once_for_all_heads() -> None:
    model = CostModel.of(load_model("deepseek-v3"), load_device("h200-sxm"), tp=8)
    key = model.geometry.attention[0]
    assert (key.decode.latent, key.decode.read_bytes_per_token) == (True, 1152)
    assert (key.prefill.heads, key.prefill.kv_heads, key.prefill.head_dim, key.prefill.value_dim) == (16, 16, 192, 128)


def test_formats_are_the_models_unless_told() -> None:
    device = load_device("h100-sxm")
    oss = CostModel.of(load_model("gpt-oss-20b"), device).geometry
    assert {op.dtype for op in oss.linear} == {"bf16"} and oss.experts[0].dtype == "mxfp4"
    fp8 = CostModel.of(load_model("llama-3.1-8b"), device, weights_dtype="fp8", kv_dtype="fp8_e4m3").geometry
    assert {op.dtype for op in fp8.linear} == {"fp8"} and fp8.head.dtype == "bf16"
    assert fp8.attention[0].decode.kv_dtype == "fp8"
