"""What a step costs: rooflines, host time, an engine's own kernels, the naive kernel, the work of a policy."""

from __future__ import annotations

import pytest
from cost_cases import decoding, geometry

from kvsim.cost import CostModel, Geometry, HostOverhead, StepShape
from kvsim.device import AttentionKey, catalogue, load_device
from kvsim.device.datasheet import GPU
from kvsim.device.dtypes import compute_dtype, element_bytes
from kvsim.engine_profile import load_engine
from kvsim.model import load_model

MODELS = {
    "8B": geometry(),
    "8B fp8": geometry(dtype="fp8", kv_dtype="fp8"),
    "70B tp4": geometry(tp=4, heads=64, hidden=8192, inter=28672, layers=80),
    "MHA": geometry(kv_heads=32, inter=11008, vocab=32000),
    "MoE": geometry(experts=8),
    "windows": geometry(window=1024),
}


def linear_bytes(model: Geometry) -> float:
    """of the weights that a step of one token reads"""
    dense = sum(op.times * op.n * op.k * element_bytes(op.dtype) for op in (*model.linear, model.head))
    return dense + sum(op.times * op.key.top_k * 3 * op.key.hidden * op.key.inter * element_bytes(op.dtype)
                       for op in model.experts)


def linear_flops(model: Geometry, m: int) -> dict[str, float]:
    flops: dict[str, float] = {}
    for op in model.linear:
        dtype = compute_dtype(op.dtype)
        flops[dtype] = flops.get(dtype, 0.0) + 2.0 * op.times * op.n * op.k * m
    for op in model.experts:
        flops["bf16"] += 2.0 * op.times * 3 * op.key.hidden * op.key.inter * op.key.top_k * m
    return flops


@pytest.mark.parametrize("device", catalogue())
@pytest.mark.parametrize("name", MODELS)
def test_no_step_beats_the_roofline(device: str, name: str) -> None:
    profile, model = load_device(device), MODELS[name]
    facts, cost = profile.facts, CostModel(model, profile)
    slack = 1.0 if profile.tier == "datasheet" else 0.93  # measured kernels may beat a rounded data sheet

    def compute_ns(m: int) -> float:
        return sum(work / facts.peak_flops(dtype) for dtype, work in linear_flops(model, m).items()) * 1e9

    for n, context in ((1, 128), (16, 2048), (256, 1024)):
        cache = sum(g.layers * g.decode.read_bytes_per_token * n * context for g in model.attention)
        floor = max((linear_bytes(model) + cache) / facts.bandwidth * 1e9, compute_ns(n))
        assert slack * floor <= cost.step(decoding(n, context, len(model.attention))) < 10 * floor + 20e6
    for tokens in (512, 8192):
        took = cost.step(StepShape(chunks=((tokens, 0),), sampled=1))
        # the upper bound is loose: four L40S reduce at 2.5 GB/s, the larger part of their prefill
        assert slack * compute_ns(tokens) <= took < 15 * compute_ns(tokens) + 100e6


def test_a_known_step() -> None:
    """Llama-3.1-8B, 64 × 1000 tokens on an H100: 15.0 GB of weights and 8.4 GB of cache at 3.35 TB/s take 7.0 ms."""
    ms = CostModel(geometry(), load_device("h100-sxm")).step(decoding(64, 1000)) / 1e6
    assert 7.0 < ms < 13.0


def test_tensor_parallel_pays_for_its_reductions() -> None:
    device = load_device("h100-sxm")
    alone, split = CostModel(geometry(), device), CostModel(geometry(tp=4), device)
    shape = decoding(64, 2000)
    assert split.step(shape) < alone.step(shape)
    assert split.step(shape) > alone.step(shape) / 4
    assert split.parts(shape)["allreduce"].ns > 64 * 5_000
    assert "allreduce" not in alone.parts(shape)


def test_host_time_overlaps_or_is_exposed() -> None:
    device, shape = load_device("h100-sxm"), decoding(4, 100)
    bare = CostModel(geometry(), device).step(shape)
    assert CostModel(geometry(), device, HostOverhead(overlapped_ns=1e6)).step(shape) == bare
    assert CostModel(geometry(), device, HostOverhead(overlapped_ns=50e6)).step(shape) == 50_000_000
    both = HostOverhead(exposed_ns=1e6, exposed_per_sequence_ns=1e3, exposed_prefill_ns=5e6)
    assert CostModel(geometry(), device, both).step(shape) == pytest.approx(bare + 1e6 + 4e3, abs=1)
    prefill = StepShape(chunks=((128, 0),), sampled=1)
    assert (CostModel(geometry(), device, both).step(prefill)
            == pytest.approx(CostModel(geometry(), device).step(prefill) + 6e6 + 1e3, abs=1))


def test_an_engines_own_kernels_scale_steps_with_prompts_and_without() -> None:
    device, shape, prefill = load_device("h100-sxm"), decoding(4, 100), StepShape(chunks=((128, 0),), sampled=1)
    bare, own = CostModel(geometry(), device), CostModel(geometry(), device,
                                                         HostOverhead(prompt_factor=1.5, decode_factor=0.8))
    assert own.step(shape) == pytest.approx(0.8 * bare.step(shape), abs=1)
    assert own.step(prefill) == pytest.approx(1.5 * bare.step(prefill), abs=1)
    assert own.scaled(1.1).decode_run(shape, 40) == pytest.approx(0.88 * bare.decode_run(shape, 40), abs=1)
    for one in (shape, prefill):
        assert sum(part.ns for part in own.parts(one).values()) == pytest.approx(own.step(one), abs=1)


def test_prompts_launched_kernel_by_kernel_take_the_hosts_pace_where_that_is_slower() -> None:
    engine = load_engine("vllm-0").host
    host = HostOverhead.of(engine, layers=80)
    assert host.launch_ns == 80 * engine.launch_layer_ns > 20e6
    device, bare = load_device("h100-sxm"), CostModel(geometry(), load_device("h100-sxm"))
    launched = CostModel(geometry(), device, HostOverhead(launch_ns=1e6))
    short, long = (StepShape(chunks=((tokens, 0),), sampled=1) for tokens in (16, 8192))
    assert launched.scaled(1.0, host=1000).step(short) == 1_000_000_000
    assert launched.step(long) == bare.step(long) > 1e6
    assert launched.scaled(1.0, host=1000).step(decoding(4, 100)) == bare.step(decoding(4, 100))  # a graph
    assert sum(part.ns for part in launched.parts(short).values()) == pytest.approx(launched.step(short), abs=1)


def test_a_kernel_that_knows_no_groups_reads_the_cache_for_every_query_head() -> None:
    device, parts = load_device("h100-sxm"), (load_model("llama-2-70b"), load_model("llama-2-7b"))
    grouped, half, every = (CostModel.of(parts[0], device, tp=4, repeated_reads=share) for share in (0, 0.5, 1))
    assert [cost.geometry.attention[0].decode.kv_heads for cost in (grouped, half, every)] == [2, 9, 16]
    assert grouped.geometry.memory == every.geometry.memory  # what is written is the same
    shape = decoding(256, 1000)
    times = [cost.parts(shape)["attention_decode"].ns for cost in (grouped, half, every)]
    assert times[0] < 0.5 * times[1] < 0.5 * times[2]
    alone = [CostModel.of(parts[1], device, repeated_reads=share).step(shape) for share in (0, 1)]
    assert alone[0] == alone[1]  # one query head a KV head


def test_host_constants_come_from_an_engine_profile() -> None:
    engine = load_engine("vllm-1").host
    host = HostOverhead.of(engine)
    assert host.exposed(7, prefill=True) == (engine.exposed_ns + 7 * engine.exposed_per_sequence_ns
                                             + engine.exposed_prefill_ns)
    assert (host.overlapped_ns, host.spread) == (engine.overlapped_ns, engine.spread)
    part = CostModel(geometry(), load_device("h100-sxm"), host).parts(decoding(4, 100))["host"]
    assert part.error_p95 == engine.spread


def test_naive_attention_pays_for_its_matrix() -> None:
    flash, naive = geometry(), geometry(kernel="naive")
    device = load_device("h100-sxm")
    prefill = StepShape(chunks=((8192, 0),), sampled=1)
    parts = [CostModel(model, device).parts(prefill)["attention_prefill"].ns for model in (flash, naive)]
    matrix = 32 * 4 * 2 * 32 * 8192**2 / 3.35e12 * 1e9  # layers × passes × bytes × heads × S² at peak bandwidth
    assert parts[1] > matrix > parts[0]
    assert CostModel(flash, device).workspace_bytes(prefill) == 0
    assert CostModel(naive, device).workspace_bytes(prefill) == 4 * 32 * 8192**2


def test_policy_work_is_charged() -> None:
    model = CostModel(geometry(), load_device("h100-sxm"))
    plain, scored, moved = decoding(64, 1000), decoding(64, 1000), decoding(64, 1000)
    scored.scored, moved.moved_bytes = 64_000, 10**9
    assert model.step(scored) > model.step(plain) + 32 * 2_500
    assert model.step(moved) - model.step(plain) == pytest.approx(2 * 1e9 / (0.8 * 3.35e12) * 1e9 + 2_500, rel=1e-3)
    assert set(model.parts(scored)) - set(model.parts(plain)) == {"score"}


def test_a_smaller_cache_reads_faster() -> None:
    device = load_device("h100-sxm")
    steps = [CostModel(geometry(kv_dtype=dtype), device).step(decoding(64, 8000)) for dtype in ("bf16", "fp8", "int4")]
    assert steps == sorted(steps, reverse=True)


def test_latent_attention_reads_one_row_a_token() -> None:
    latent = AttentionKey(heads=128, kv_heads=1, head_dim=576, value_dim=512, latent=True)
    assert latent.read_bytes_per_token == 576 * 2
    expanded = AttentionKey(heads=128, kv_heads=128, head_dim=192, value_dim=128)
    assert expanded.read_bytes_per_token == 128 * (192 + 128) * 2
    assert expanded.flops_per_pair == 2 * 128 * (192 + 128)


def test_a_gpu_of_amds_reaches_less_of_its_peak_and_is_less_sure() -> None:
    """Everything that runs on it, against the same peaks on a GPU of NVIDIA's; and the answer says so."""
    amd = load_device("mi300x")
    twin = amd.model_copy(update={"facts": amd.facts.model_copy(update={"arch": "sm_90"})})
    model = load_model("mixtral-8x7b")
    ours, theirs = CostModel.of(model, amd), CostModel.of(model, twin)
    for shape in (decoding(64, 2000), StepShape(chunks=((4096, 0),), sampled=1)):
        slow, fast = ours.parts(shape), theirs.parts(shape)
        assert all(slow[name].ns > 1.05 * fast[name].ns for name in slow if name in ("linear", "experts"))
        assert all(slow[name].ns > 1.05 * fast[name].ns for name in slow if name.startswith("attention"))
        assert ours.step(shape) < 2.1 * theirs.step(shape)
        assert ours.error_band(shape).high > 1.2 * theirs.error_band(shape).high


def test_small_weights_alone_begin_as_wide_ones_do() -> None:
    wide, small, alone = (GPU.matmul(dtype)[0] for dtype in ("bf16", "fp8", "int4"))
    assert (alone.fixed_ns, alone.byte_efficiency) == (wide.fixed_ns, wide.byte_efficiency)
    assert alone.flop_efficiency == small.flop_efficiency and GPU.matmul("int4")[1] == GPU.matmul("fp8")[1]


def test_an_empty_step_costs_the_host_only() -> None:
    host = HostOverhead(exposed_ns=5e5)
    assert CostModel(geometry(), load_device("h100-sxm"), host).step(StepShape()) == 500_000
