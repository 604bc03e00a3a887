"""How tables are read: unequal lengths, fused steps, and interpolation in one, two and four axes."""

from __future__ import annotations

import pytest
from cost_cases import KEY, SKEW, curved, decode_curve, decoding, geometry, profile

from kvsim.cost import CostModel, StepShape
from kvsim.cost.attention import mixed_at
from kvsim.cost.line import Line, ragged_at
from kvsim.device import MixedCurve, Ragged


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
