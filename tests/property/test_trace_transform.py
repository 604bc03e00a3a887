"""Transforms keep parents before children, think times, and prefixes; bad numbers are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.trace import Trace, transform
from kvsim.trace.arrivals import Arrivals
from kvsim.trace.lengths import Fixed, Lognormal
from kvsim.trace.stats import describe, reusable_share
from kvsim.trace.synth import SynthSpec, generate
from kvsim.units import NS_PER_S


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    return generate(
        SynthSpec(
            requests=draw(st.integers(2, 60)),
            seed=draw(st.integers(0, 10_000)),
            arrivals=Arrivals(draw(st.sampled_from(["poisson", "constant", "onoff"])), draw(st.sampled_from([0.1, 3]))),
            prompt=Lognormal(100, 1.0),
            message=Fixed(20),
            output=Fixed(30),
            system_tokens=draw(st.sampled_from([0, 50])),
            turns=draw(st.sampled_from([1.0, 2.5])),
            think_s=Lognormal(5, 1.0),
        )
    )


def check(trace: Trace) -> None:
    n = len(trace)
    assert (np.diff(trace.arrival_ns) >= 0).all()
    assert (trace.parent < np.arange(n)).all()
    has = trace.parent >= 0
    assert (trace.arrival_ns[has] >= trace.arrival_ns[trace.parent[has]]).all()
    assert (trace.session[has] == trace.session[trace.parent[has]]).all()
    for row in range(n):
        ends = trace.ends(row)
        assert (np.diff(ends) >= 0).all()
        assert not len(ends) or ends[-1] <= trace.prompt_tokens[row] + trace.output_tokens[row]


def facts(trace: Trace, row: int) -> tuple[object, ...]:
    """What a row is, but for its time and the numbers of its relatives."""
    return (
        trace[row].prompt_tokens, trace[row].output_tokens, trace[row].after_parent_ns, trace[row].session,
        trace[row].block_ids, tuple(trace.ends(row).tolist()),
    )  # fmt: skip


@given(traces(), st.floats(0.01, 100))
def test_rate_scale_moves_beginnings_only(trace: Trace, factor: float) -> None:
    scaled = transform.scale_rate(trace, factor)
    check(scaled)
    begins, before = (t.arrival_ns[t.parent < 0] for t in (scaled, trace))
    assert np.abs(begins - before / factor).max() <= 1
    assert sorted(scaled.after_parent_ns.tolist()) == sorted(trace.after_parent_ns.tolist())
    rows, old = ([facts(t, row) for row in range(len(t))] for t in (scaled, trace))
    assert sorted(map(str, rows)) == sorted(map(str, old))
    gaps, old_gaps = (
        sorted((t.arrival_ns[t.parent >= 0] - t.arrival_ns[t.parent[t.parent >= 0]]).tolist()) for t in (scaled, trace)
    )
    assert gaps == old_gaps


@given(traces(), st.integers(0, 5))
def test_other_arrivals_move_beginnings_only(trace: Trace, seed: int) -> None:
    process = Arrivals("poisson", rate=2)
    moved = transform.set_arrivals(trace, process, seed)
    check(moved)
    begins = process.times(int((trace.parent < 0).sum()), np.random.default_rng(seed))
    assert moved.arrival_ns[moved.parent < 0].tolist() == (begins - begins[0]).tolist()
    rows, old = ([facts(t, row) for row in range(len(t))] for t in (moved, trace))
    assert sorted(map(str, rows)) == sorted(map(str, old))


@given(traces(), st.floats(0.01, 50))
def test_set_rate_reaches_it(trace: Trace, rate: float) -> None:
    if transform.mean_rate(trace) is None:
        with pytest.raises(InputError, match="arrive at once"):
            transform.set_rate(trace, rate)
        return
    new = transform.mean_rate(transform.set_rate(trace, rate))
    assert new is not None and math.isclose(new, rate, rel_tol=1e-6)


@given(traces(), st.integers(0, 40), st.integers(1, 40))
def test_slices_keep_whole_ancestries(trace: Trace, start: int, length: int) -> None:
    begin, end = start * NS_PER_S, (start + length) * NS_PER_S
    cut = transform.slice_time(trace, begin, end)
    check(cut)

    def kept(row: int) -> bool:
        parent = int(trace.parent[row])
        return begin <= trace.arrival_ns[row] < end and (parent < 0 or kept(parent))

    rows = [row for row in range(len(trace)) if kept(row)]
    assert [facts(cut, row) for row in range(len(cut))] == [facts(trace, row) for row in rows]
    assert cut.arrival_ns.tolist() == [int(trace.arrival_ns[row]) - begin for row in rows]


@given(traces(), st.integers(1, 80))
def test_limit_is_the_beginning(trace: Trace, n: int) -> None:
    cut = transform.limit(trace, n)
    check(cut)
    assert [facts(cut, row) for row in range(len(cut))] == [facts(trace, row) for row in range(min(n, len(trace)))]


@given(traces(), st.integers(1, 4))
def test_repeats_are_new_people_who_do_the_same(trace: Trace, times: int) -> None:
    many = transform.repeat(trace, times)
    check(many)
    n = len(trace)
    assert len(many) == times * n
    for k in range(times):
        assert many.prompt_tokens[k * n : (k + 1) * n].tolist() == trace.prompt_tokens.tolist()
        assert np.diff(many.arrival_ns[k * n : (k + 1) * n]).tolist() == np.diff(trace.arrival_ns).tolist()
        ids = {i for row in range(k * n, (k + 1) * n) for i in many[row].block_ids}
        others = {i for row in range(k * n) for i in many[row].block_ids}
        assert not ids & others
    one, all_ = reusable_share(trace), reusable_share(many)
    assert one == all_ or math.isclose(one or 0, all_ or 0)


@given(traces(), st.floats(0.05, 8))
def test_scaled_lengths(trace: Trace, factor: float) -> None:
    longer = transform.scale_lengths(trace, factor)
    check(longer)
    assert (longer.prompt_tokens >= 1).all()
    assert np.abs(longer.prompt_tokens - trace.prompt_tokens * factor).max() <= 1
    assert transform.scale_lengths(trace, 1.0).prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    for row in range(len(trace)):
        assert longer[row].block_ids == trace[row].block_ids


@given(traces(), st.integers(-100, 100))
def test_shift(trace: Trace, by: int) -> None:
    assert (transform.shift(trace, by).arrival_ns - trace.arrival_ns == by).all()


@pytest.mark.parametrize("bad", [math.nan, 0, -1, math.inf])
def test_rates_and_scales_that_are_none(bad: float) -> None:
    trace = generate(SynthSpec(requests=3))
    for change in (transform.scale_rate, transform.set_rate, transform.scale_lengths):
        with pytest.raises(InputError, match="must be a number above 0"):
            change(trace, bad)


def test_scales_without_measure() -> None:
    trace = generate(SynthSpec(requests=3))
    with pytest.raises(InputError, match="longer than a century"):
        transform.scale_rate(trace, 1e-12)
    with pytest.raises(InputError, match="10⁹ is the most"):
        transform.scale_lengths(trace, 1e9)
    with pytest.raises(InputError, match="longer than a century"):
        generate(SynthSpec(requests=3, arrivals=Arrivals(rate=1e-12)))


def test_counts_that_are_none() -> None:
    trace = generate(SynthSpec(requests=3))
    for change in (transform.limit, transform.repeat):
        with pytest.raises(InputError, match="must be 1 or more"):
            change(trace, 0)
    with pytest.raises(InputError, match="its end must come after its start"):
        transform.slice_time(trace, 5, 5)


def test_an_emptied_trace_is_described() -> None:
    empty = transform.slice_time(generate(SynthSpec(requests=3)), 10**15)
    assert len(empty) == 0
    assert describe(empty)["rate_per_s"] is None and describe(empty)["prompt"]["p50"] is None
    assert len(transform.repeat(empty, 3)) == 0
