"""The scalar and the vector path of the cost model are one function; costs grow with work; an answer has an error."""

from __future__ import annotations

import pytest
from cost_cases import curved, decode_shapes, decoding, geometry, later
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cost import CostModel, HostOverhead, StepShape
from kvsim.cost import model as cost_model
from kvsim.cost.line import ragged_at
from kvsim.cost.prefill import PrefillRow, extent
from kvsim.device import AttentionKey, Curves, load_device
from kvsim.device.forms import causal_pairs, prefill_ns, prefill_work

HOST = HostOverhead(exposed_ns=412_345.7, exposed_per_sequence_ns=1_234.5, exposed_prefill_ns=2e6, overlapped_ns=7.9e6,
                    decode_factor=0.93, launch_ns=8.1e6)
MODELS = {
    "datasheet": CostModel(geometry(), load_device("h100-pcie").model_copy(update={"curves": Curves()}), HOST),
    "imported": CostModel(geometry(), load_device("h100-sxm"), HOST),
    "curved": CostModel(geometry(), curved(), HOST),
    "windows": CostModel(geometry(window=512), curved(), HOST),
    "scaled": CostModel(geometry(tp=2), curved(), HOST).scaled(1.0731, 0.83),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("crossover", [0, 10**9], ids=["numpy", "python"])
def test_a_run_is_its_steps(name: str, crossover: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]
    monkeypatch.setattr(cost_model, "SCALAR_RUN", crossover)

    @given(decode_shapes((0, 512) if name == "windows" else (0,)), st.integers(1, 700))
    def check(shape: StepShape, k: int) -> None:
        if name == "windows" and shape.growing[1]:
            k = min(k, 512 - shape.longest[1] + 1 if shape.longest_grows[1] else 1)
        run = model.decode_run(shape, k)
        assert run.tolist() == [model.step(later(shape, j)) for j in range(k)]

    check()


@given(n=st.integers(1, 300), context=st.integers(1, 30_000), more=st.integers(1, 5_000))
def test_more_context_never_takes_less(n: int, context: int, more: int) -> None:
    for model in (MODELS["datasheet"], MODELS["curved"], MODELS["imported"]):
        assert model.step(decoding(n, context + more)) >= model.step(decoding(n, context))


@given(n=st.integers(1, 1000), context=st.integers(1, 8_000))
def test_one_more_sequence_takes_longer(n: int, context: int) -> None:
    model = MODELS["datasheet"]
    assert model.step(decoding(n + 1, context)) > model.step(decoding(n, context))


@given(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 30_000)), min_size=1, max_size=4), st.integers(1, 2048))
def test_more_prefill_takes_longer(chunks: list[tuple[int, int]], more: int) -> None:
    model = MODELS["datasheet"]
    before = model.step(StepShape(chunks=tuple(chunks), sampled=1))
    after = model.step(StepShape(chunks=(*chunks, (more, 0)), sampled=1))
    assert after > before


@pytest.mark.parametrize("device", ["h100-sxm", "rtx-4090"])
@pytest.mark.parametrize(("kernel", "window"), [("flash", 0), ("flash", 512), ("naive", 0)])
def test_prefill_worked_out_in_advance_is_the_form_to_the_last_bit(device: str, kernel: str, window: int) -> None:
    facts, curve = load_device(device).facts, load_device(device).curves.prefill[0]
    key = AttentionKey(heads=32, kv_heads=8, head_dim=128, kv_dtype="bf16", kernel=kernel, window=window)
    row = PrefillRow(curve, key, facts)

    @given(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 30_000)), min_size=1, max_size=4))
    def check(chunks: list[tuple[int, int]]) -> None:
        tokens, attended = extent(key, tuple(chunks))
        assert tokens == sum(count for count, _ in chunks)
        assert attended == sum(causal_pairs(*chunk, window) for chunk in chunks) / tokens
        work = [prefill_work(curve.form, key, *chunk) for chunk in chunks]
        flops, bytes_ = sum((w[0] for w in work), 0.0), sum((w[1] for w in work), 0.0)
        whole = prefill_ns(curve.form, facts, len(chunks), flops, bytes_) * ragged_at(curve.table, tokens, attended)
        assert row.ns(tuple(chunks), tokens, attended) == whole

    check()


@given(decode_shapes(), st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 30_000)), max_size=3))
def test_parts_add_up(shape: StepShape, chunks: list[tuple[int, int]]) -> None:
    shape.chunks = tuple(chunks)
    for model in (MODELS["datasheet"], MODELS["curved"], MODELS["scaled"]):
        total = sum(cost.ns for cost in model.parts(shape).values())
        assert abs(total - model.step(shape)) <= 1
        band = model.error_band(shape)
        assert 0 < band.low <= 1 <= band.high
        assert 1 / band.low == pytest.approx(band.high)


@given(decode_shapes())
def test_scaling_scales_device_time(shape: StepShape) -> None:
    bare = CostModel(geometry(), curved())
    assert bare.scaled(2.0).step(shape) == pytest.approx(2 * bare.step(shape), abs=1)


@settings(deadline=None)
@given(st.permutations([1, 7, 512, 513, 1025, 5000, 20_000]))
def test_costs_do_not_depend_on_what_was_asked_before(order: list[int]) -> None:
    fresh = CostModel(geometry(experts=8), load_device("h100-sxm"))
    asked = {m: fresh.step(StepShape(chunks=((m, 0),), sampled=1)) for m in order}
    assert asked == {m: CostModel(geometry(experts=8), load_device("h100-sxm")).step(
        StepShape(chunks=((m, 0),), sampled=1)) for m in order}
