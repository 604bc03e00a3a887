"""Cost model: rooflines, fallbacks and their names, unequal lengths, fused steps, the naive kernel, policy work."""

from __future__ import annotations

import pytest
from cost_cases import GOOD, KEY, SKEW, curved, decoding, geometry, profile, provenance

from kvsim.cost import CostModel, Geometry, HostOverhead, StepShape
from kvsim.cost.attention import mixed_at
from kvsim.cost.line import Line, ragged_at
from kvsim.cost.lookup import attention_distance, decode_blend, linear_row, moe_row
from kvsim.device import (
    AttentionKey,
    DecodeCurve,
    DeviceProfile,
    LinearTable,
    MixedCurve,
    MoeCurve,
    MoeKey,
    Ragged,
    catalogue,
    load_device,
)
from kvsim.device.datasheet import GPU
from kvsim.device.dtypes import compute_dtype, element_bytes
from kvsim.engine_profile import load_engine
from kvsim.model import load_model, model_names

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


# ---- fallbacks ---------------------------------------------------------------------------------------------------

FLAT = Ragged(outer=(1, 512), inner=((16, 8192), (16, 8192)), ratio=((1.5, 1.5), (1.5, 1.5)))


def decode_curve(ratio: float, **key: object) -> DecodeCurve:
    table = FLAT.model_copy(update={"ratio": ((ratio, ratio),) * 2})
    return DecodeCurve(key=KEY.model_copy(update=key), form=GPU.decode, table=table, source="test")


def decode_ns(device: DeviceProfile, model: Geometry) -> float:
    return CostModel(model, device).parts(decoding(32, 1000))["attention_decode"].ns


def test_the_very_key_wins() -> None:
    device = profile(decode=(decode_curve(1.5), decode_curve(9.0, kv_heads=4), decode_curve(9.0, kv_heads=16)))
    assert decode_ns(device, geometry()) == pytest.approx(1.5 * decode_ns(profile(), geometry()))
    part = CostModel(geometry(), device).parts(decoding(32, 1000))["attention_decode"]
    assert (part.tier, part.how, part.error_p95) == ("imported", "exact", GOOD.p95)


def test_the_page_size_alone_is_no_other_key() -> None:
    assert decode_blend(profile(decode=(decode_curve(1.5, block_size=0),)), KEY).origin.how == "exact"


def test_neighbours_are_interpolated_by_distance() -> None:
    device = profile(decode=(decode_curve(1.0, kv_heads=4, heads=16), decode_curve(2.0, kv_heads=16, heads=64)))
    part = CostModel(geometry(), device).parts(decoding(32, 1000))["attention_decode"]
    assert part.how == "interpolated" and part.error_p95 == 0.12
    assert part.ns == pytest.approx(1.5 * decode_ns(profile(), geometry()))


def test_a_far_key_lends_its_ratio() -> None:
    device = profile(decode=(decode_curve(1.4, kv_dtype="fp8"),))
    part = CostModel(geometry(), device).parts(decoding(32, 1000))["attention_decode"]
    assert part.how == "nearest" and part.error_p95 == 0.25
    assert part.ns == pytest.approx(1.4 * decode_ns(profile(), geometry()))


def test_nothing_known_is_the_form_and_says_so() -> None:
    model = CostModel(geometry(), profile())
    part = model.parts(decoding(32, 1000))["attention_decode"]
    assert (part.tier, part.how, part.error_p95) == ("datasheet", "form", GPU.decode_error.p95)
    assert model.tier(decoding(32, 1000)) == "datasheet"


def test_a_naive_kernel_is_no_flash_kernel() -> None:
    naive = KEY.model_copy(update={"kernel": "naive"})
    assert decode_blend(profile(decode=(decode_curve(1.4),)), naive).origin.how == "form"


def test_beyond_the_grid_the_last_ratio_holds_with_a_wider_error() -> None:
    model = CostModel(geometry(), profile(decode=(decode_curve(1.5),)))
    bare = CostModel(geometry(), profile())
    for n, context in ((32, 60_000), (2000, 1000), (32, 2)):
        shape = decoding(n, context)
        part = model.parts(shape)["attention_decode"]
        assert part.beyond_grid and part.error_p95 == 0.3
        assert part.ns == pytest.approx(1.5 * bare.parts(shape)["attention_decode"].ns)


def table(dtype: str, shapes: dict[tuple[int, int], float]) -> LinearTable:
    return LinearTable(dtype=dtype, form=GPU.linear, m=(1, 4096), shapes=tuple(shapes),
                       ratio=tuple((r, r) for r in shapes.values()), source="test")


@pytest.mark.parametrize(("shape", "dtype", "how", "ratio"), [
    ((4096, 4096), "bf16", "exact", 1.0),
    ((4096, 4096), "fp16", "exact", 1.0),
    ((8192, 8192), "bf16", "interpolated", 2.5),
    ((4096, 8192), "bf16", "interpolated", 1.5),
    ((10**6, 4096), "bf16", "nearest", 3.0),
    ((4096, 4096), "fp8", "form", 1.0),
])
def test_linear_layers_fall_back(shape: tuple[int, int], dtype: str, how: str, ratio: float) -> None:
    corners = {(4096, 4096): 1.0, (4096, 16384): 2.0, (16384, 4096): 3.0, (16384, 16384): 4.0}
    row = linear_row(profile(linear=(table("bf16", corners),)), *shape, dtype)
    assert row.origin.how == how
    assert row.ratio == pytest.approx((ratio,) * len(row.ratio))


def test_a_layers_own_table_comes_before_a_grid() -> None:
    grid = table("bf16", {(4096, 4096): 1.0, (4096, 8192): 1.0, (8192, 4096): 1.0, (8192, 8192): 1.0})
    device = profile(linear=(table("bf16", {(4096, 4096): 2.0}), grid))
    assert linear_row(device, 4096, 4096, "bf16").ratio[0] == 2.0
    assert linear_row(device, 8192, 8192, "bf16").ratio[0] == 1.0
    assert linear_row(device, 5120, 5120, "bf16").ratio[0] == pytest.approx(1.0)


def test_scattered_shapes_are_weighted_by_distance() -> None:
    row = linear_row(profile(linear=(table("bf16", {(4096, 4096): 1.0, (16384, 4100): 2.0}),)), 4096 * 2, 4096, "bf16")
    assert row.origin.how == "interpolated"
    assert 1.4 < row.ratio[0] < 1.6


def test_experts_fall_back() -> None:
    key = MoeKey(hidden=4096, inter=14336, experts=8, top_k=2)
    curve = MoeCurve(key=key, dtype="bf16", form=GPU.moe, m=(1, 4096), ratio=(1.2, 1.2), source="test")
    assert moe_row(profile(moe=(curve,)), key, "bf16").origin.how == "exact"
    other = key.model_copy(update={"experts": 64})
    assert moe_row(profile(moe=(curve,)), other, "bf16").origin.how == "nearest"
    assert moe_row(profile(moe=(curve,)), key, "fp8").origin.how == "form"


def test_a_rung_without_a_number_is_as_bad_as_the_next() -> None:
    known = provenance().model_copy(update={"points": None})
    device = profile(decode=(decode_curve(1.5),)).model_copy(update={"provenance": {"test": known}})
    assert decode_blend(device, KEY).origin.p95 == 0.12


def test_distance_is_in_octaves() -> None:
    assert attention_distance(KEY, KEY) == 0
    assert attention_distance(KEY, KEY.model_copy(update={"kv_heads": 16, "heads": 64})) == 1
    changes: list[dict[str, object]] = [{"block_size": 64}, {"heads": 64}, {"window": 128}, {"kv_dtype": "fp8"}]
    distances = [attention_distance(KEY, KEY.model_copy(update=change)) for change in changes]
    assert distances == sorted(distances)


# ---- unequal lengths, fused steps, naive kernel, policy work -----------------------------------------------------

def test_unequal_lengths_cost_between_mean_and_longest() -> None:
    curve = decode_curve(1.0).model_copy(update={"skew": SKEW})
    model = CostModel(geometry(), profile(decode=(curve,)))
    even = model.step(decoding(8, 1000))
    skewed = StepShape(decode=8, attended=(8000,), longest=(4500,), growing=(8,), longest_grows=(True,), sampled=8)
    assert even < model.step(skewed) < model.step(decoding(8, 4500))
    one = StepShape(decode=1, attended=(1000,), longest=(1000,), growing=(1,), longest_grows=(True,), sampled=1)
    assert model.step(one) == CostModel(geometry(), profile(decode=(decode_curve(1.0),))).step(one)


def mixed_step(n: int = 64) -> StepShape:
    shape = decoding(n, 1000)
    shape.chunks = ((1000, 500),)
    return shape


def test_a_fused_step_uses_its_own_table() -> None:
    curve = MixedCurve(key=KEY, tokens=(16, 2048), context=(0, 4096), sequences=(1, 64), attended=(16, 4096),
                       ratio=((((1.3, 1.3),) * 2,) * 2,) * 2, source="test")
    apart, fused = CostModel(geometry(), profile()), CostModel(geometry(), profile(mixed=(curve,)))
    for name in ("attention_prefill", "attention_decode"):
        assert fused.parts(mixed_step())[name].ns == pytest.approx(1.3 * apart.parts(mixed_step())[name].ns)
    assert fused.step(decoding(64, 1000)) == apart.step(decoding(64, 1000))
    assert apart.parts(mixed_step())["attention_decode"].error_p95 > apart.parts(decoding(64, 1000))[
        "attention_decode"].error_p95, "a sum of two kernels stands in for one: that is less sure"


def test_a_fused_step_feels_its_longest_sequence() -> None:
    model = CostModel(geometry(), curved())
    even = mixed_step()
    skewed = mixed_step()
    skewed.longest = (8000,)
    assert model.step(even) < model.step(skewed)


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


def test_line_is_what_it_says() -> None:
    line = Line([1, 3, 4], [10, 30, 20], below=1, above=2)
    assert [line.at(x) for x in (0, 1, 2, 3, 3.5, 4, 6)] == [9, 10, 20, 30, 25, 20, 24]


@pytest.mark.parametrize(("outer", "inner", "ratio"), [
    (10, 100, 1.0), (10, 150, 1.5), (10, 1, 1.0), (10, 900, 2.0), (20, 400, 5.0), (15, 200, 2.5), (1, 150, 1.5),
    (99, 0, 3.0),
])
def test_ragged_tables_interpolate_inner_then_outer(outer: float, inner: float, ratio: float) -> None:
    table = Ragged(outer=(10, 20), inner=((100, 200), (200, 400)), ratio=((1, 2), (3, 5)))
    assert ragged_at(table, outer, inner) == pytest.approx(ratio)


@pytest.mark.parametrize("place", [
    (16, 0, 1, 16), (2048, 4096, 64, 4096), (1032, 2048, 32.5, 2056), (16, 4096, 1, 2056),
])
def test_a_fused_table_is_linear_in_all_four_axes(place: tuple[float, ...]) -> None:
    tokens, context, sequences, attended = place
    share = [(tokens - 16) / 2032, context / 4096, (sequences - 1) / 63, (attended - 16) / 4080]
    curve = curved().curves.mixed[0]
    assert mixed_at(curve, tokens, context, sequences, attended) == pytest.approx(1 + 0.1 * sum(share))
    assert mixed_at(curve, 10**6, 10**6, 10**6, 10**6) == pytest.approx(1.4)


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
