"""The memory plan: it adds up, follows each engine's rule, pools hybrid models, and says what would fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.device import load_device
from kvsim.engine_profile import engine_names, load_engine
from kvsim.errors import InputError
from kvsim.memory import MemoryPlan, Stated, plan_memory
from kvsim.model import load_model
from kvsim.units import GIB

VLLM = load_engine("vllm-1")
LLAMA = load_model("llama-3.1-8b")


def parts(plan: MemoryPlan) -> int:
    return plan.weights + plan.activations + plan.workspace + plan.other + plan.unmanaged + plan.pool


@settings(max_examples=300, deadline=None)
@given(
    model=st.sampled_from(["llama-3.1-8b", "opt-13b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v2-lite"]),
    engine=st.sampled_from(engine_names()),
    memory=st.integers(1 << 30, 1 << 38),
    tp=st.sampled_from([1, 2, 4, 8]),
    kv=st.sampled_from(["auto", "bf16", "fp8", "int8", "int4"]),
    weights=st.sampled_from([None, "bf16", "fp8", "int4"]),
    share=st.none() | st.floats(0.05, 1),
    block=st.none() | st.integers(1, 256),
    length=st.none() | st.integers(1, 1 << 20),
    attention=st.sampled_from(["flash", "naive"]),
)
def test_parts_are_the_device(
    model: str, engine: str, memory: int, tp: int, kv: str, weights: str | None, share: float | None,
    block: int | None, length: int | None, attention: str,
) -> None:  # fmt: skip
    plan = plan_memory(
        load_model(model), memory, load_engine(engine), tp=tp, kv_dtype=kv, weights_dtype=weights,
        gpu_memory_utilization=share, block_size=block, max_model_len=length, attention=attention, advise=False,
    )  # fmt: skip
    assert parts(plan) == plan.total == memory
    assert plan.pool == plan.blocks * plan.block_size * plan.group_token_bytes
    assert plan.fits == (plan.pool > 0)
    if plan.fits:
        assert min(plan.unmanaged, plan.weights, plan.other, plan.activations, plan.workspace) >= 0
        assert plan.budget == plan.total - plan.unmanaged
        assert plan.max_concurrency > 0


def test_a_larger_share_or_a_smaller_dtype_never_shrinks_the_pool() -> None:
    h100 = load_device("h100-sxm")
    pools = [plan_memory(LLAMA, h100, VLLM, gpu_memory_utilization=share).pool for share in (0.5, 0.7, 0.9, 1.0)]
    assert pools == sorted(pools)
    tokens = [plan_memory(LLAMA, h100, VLLM, kv_dtype=kv).tokens for kv in ("bf16", "int8", "fp8", "int4")]
    assert tokens == sorted(tokens)
    assert tokens[1] / tokens[0] == pytest.approx(1.969, abs=0.001)


def test_vllm_takes_its_share_of_the_whole_device() -> None:
    plan = plan_memory(LLAMA, 80 * GIB, VLLM, stated=Stated(15 * GIB, 2 * GIB, GIB), block_size=16)
    assert plan.pool == (72 - 15 - 2 - 1) * GIB
    assert plan.unmanaged == 8 * GIB
    assert plan.blocks == 54 * GIB // (16 * 128 * 1024)
    assert plan.spread == 0


@pytest.mark.parametrize(
    ("engine", "left"),
    [
        ("trtllm", 0.9 * (80 - 15 - 2 - 1)),
        ("lmdeploy", 0.8 * (80 - 15 - 1)),
        ("lmdeploy@0.1", 0.5 * 80 - 15 - 2 - 1),
        ("vllm-0@0.2", 0.9 * 80 - 15 - 2),  # did not see what lies beside torch
        ("sglang", 80 - 15 - 12.5),  # 512 MiB and 1.5 MiB × 8192 tokens, 2 MiB × 256 graphs: more than 10 GiB
    ],
)
def test_each_engines_rule(engine: str, left: float) -> None:
    plan = plan_memory(LLAMA, 80 * GIB, load_engine(engine), stated=Stated(15 * GIB, 2 * GIB, GIB, graphs=0))
    expected = left if engine != "sglang" else 80 - 15 - (0.5 + 1.5 * 8 + 0.5)
    block = plan.block_size * plan.group_token_bytes
    assert 0 <= expected * GIB - plan.pool < block + 1


def test_graphs_count_where_the_version_counts_them() -> None:
    old, new = (plan_memory(LLAMA, 80 * GIB, load_engine(f"vllm-1@{v}"), gpu_memory_utilization=0.9)
                for v in ("0.19", "0.32"))  # fmt: skip
    assert old.pool - new.pool == pytest.approx(0.5 * GIB, abs=2 << 20)
    known = Stated(15 * GIB, 2 * GIB, GIB, graphs=2 * GIB)
    assert plan_memory(LLAMA, 80 * GIB, load_engine("vllm-1@0.19"), stated=known).other == GIB
    assert plan_memory(LLAMA, 80 * GIB, load_engine("vllm-1@0.21"), stated=known).other == 3 * GIB


def test_hybrid_models_draw_equal_pages_from_one_pool() -> None:
    h100 = load_device("h100-sxm")
    gemma = plan_memory(load_model("gemma-3-27b"), h100, VLLM, max_num_batched_tokens=2048)
    layer = 2 * 16 * 128 * 2
    assert gemma.windows == (0,) + (1024,) * 6  # 10 full layers, 52 with a window in groups of 10
    assert gemma.group_token_bytes == 10 * layer
    full, window = 131072 // 16, -(-(1024 - 1 + 2048) // 16) + 1
    assert gemma.max_concurrency == gemma.blocks / (full + 6 * window)
    assert gemma.tokens == int(gemma.max_concurrency * 131072)
    oss = plan_memory(load_model("gpt-oss-20b"), h100, VLLM)
    assert oss.windows == (0, 128)


def test_a_window_that_covers_the_longest_request_is_full_attention() -> None:
    plan = plan_memory(load_model("exaone-4.0-32b"), 100 * GIB, VLLM, max_model_len=4096)
    assert plan.windows == (0,)
    assert plan.group_token_bytes == 256 * 1024  # as vLLM 0.11 printed for this model and limit
    assert plan.tokens == plan.blocks * 16


def test_groups_of_nearly_one_size_are_padded_to_the_larger() -> None:
    gemma = load_model("gemma-3-27b")
    full, window = gemma.attention_groups
    uneven = replace(gemma, attention_groups=(replace(full, layers=28), replace(window, layers=34)))
    plan = plan_memory(uneven, 200 * GIB, VLLM)
    assert plan.windows == (0, 1024)
    assert plan.group_token_bytes == 34 * 2 * 16 * 128 * 2


def test_naive_attention_needs_room_for_its_scores() -> None:
    flash, naive = (plan_memory(LLAMA, 80 * GIB, VLLM, max_model_len=8192, max_num_batched_tokens=2048, attention=a)
                    for a in ("flash", "naive"))  # fmt: skip
    assert naive.workspace - flash.workspace == 4 * 32 * 2048 * 8192
    assert not plan_memory(LLAMA, 80 * GIB, VLLM, attention="naive").fits  # 2048 × 131072 scores for 32 heads


@pytest.mark.parametrize(
    ("model", "device", "kwargs", "advice"),
    [
        ("llama-3.1-70b", "h100-sxm", {}, "it fits with --tp 2 or --weights-dtype int4"),
        ("llama-3.1-8b", "l4", {"max_num_batched_tokens": 65536}, "it fits with --tp 2 or --weights-dtype fp8"),
        ("llama-3.1-405b", "l4", {}, "use a larger device"),
    ],
)
def test_too_large_says_what_would_fit(model: str, device: str, kwargs: dict[str, int], advice: str) -> None:
    plan = plan_memory(load_model(model), load_device(device), VLLM, **kwargs)
    assert not plan.fits
    assert (plan.pool, plan.blocks, plan.tokens) == (0, 0, 0)
    with pytest.raises(InputError, match=f"{model} doesn't fit on {device}: .*{advice}"):
        plan.require()


def test_amd_and_tensor_parallel_take_more_beside_torch() -> None:
    mi300x, h100 = load_device("mi300x"), load_device("h100-sxm")
    assert plan_memory(LLAMA, mi300x, VLLM).other > plan_memory(LLAMA, h100, VLLM).other
    assert plan_memory(LLAMA, h100, VLLM, tp=2).other > plan_memory(LLAMA, h100, VLLM).other
