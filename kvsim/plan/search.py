"""The largest rate that one replica holds: a bracketed search over a grid of rates, on the same requests every time.

The grid is geometric and the same for everyone. Where the search begins, and which rates it tries, depends on no limit
but only on whether the rates before were held: so a stricter limit never gives a larger rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kvsim.cost import CostModel
from kvsim.plan.objectives import Columns, Objectives
from kvsim.record import Recorder
from kvsim.setup import Setup
from kvsim.simulate import simulate
from kvsim.trace import Trace, transform

STEP = 1.04
"""ratio of neighbouring rates: the resolution of the answer"""
LOWEST = 128
"""steps below the first guess at which a rate counts as none (a 150th)"""


def rate_at(index: int) -> float:
    """The grid's rate in requests a second."""
    return STEP**index


@dataclass(frozen=True)
class Point:
    """One simulated rate of one replica: a point of its load curve."""

    index: int
    rate: float
    """requests a second"""
    values: dict[str, float | None]
    """every objective's number (Objectives.measure); empty where the run was given up early"""
    missed: tuple[str, ...]
    output_tokens_per_s: float | None
    user_tokens_per_s: float | None
    """1 ÷ median TPOT: how fast one user reads"""

    @property
    def held(self) -> bool:
        return not self.missed


@dataclass(frozen=True)
class Run:
    """A point, and what was recorded on the way."""

    point: Point
    record: Recorder
    trace: Trace


Rate = Callable[[int], Run]


def rater(
    trace: Trace, setup: Setup, cost: CostModel, objectives: Objectives, tried: dict[int, Point] | None = None
) -> Rate:
    """Simulates a rate of the grid, once: common random numbers, for only the starts of conversations move.

    `tried` collects the points."""
    seen: dict[int, Run] = {}

    def run(index: int) -> Run:
        if index not in seen:
            scaled = transform.set_rate(trace, rate_at(index))
            seen[index] = evaluate(scaled, setup, cost, objectives, index)
            if tried is not None:
                tried[index] = seen[index].point
        return seen[index]

    return run


def evaluate(trace: Trace, setup: Setup, cost: CostModel, objectives: Objectives, index: int) -> Run:
    """Simulate `trace` as it is, until it ends or an objective is missed for sure."""
    lost: list[str] = []
    hopeless = objectives.hopeless(trace)

    def stop(record: Recorder, now: int) -> bool:
        name = hopeless(record, now)
        if name is not None:
            lost.append(name)
        return name is not None

    record, _ = simulate(trace, setup, cost, stop=stop)
    if lost:
        return Run(Point(index, rate_at(index), {}, tuple(lost), None, None), record, trace)
    values = objectives.measure(record, trace)
    run = Columns(record, trace)
    tpot = run.statistic("tpot", 0.5)
    point = Point(
        index, rate_at(index), values, objectives.missed(values),
        run.output_tokens / run.span_s if run.span_s else None, 1 / tpot if tpot else None,
    )
    return Run(point, record, trace)


def first_guess(trace: Trace, setup: Setup, cost: CostModel) -> int:
    """A place on the grid to begin at: two thirds of the rate at which a few hundred requests that are all there at
    once get done."""
    few = transform.limit(trace, 400)
    alone = few.with_columns(arrival_ns=few.arrival_ns * 0, after_parent_ns=few.after_parent_ns * 0)
    record, _ = simulate(alone, setup, cost)
    span = max((int(last) for last in record.last_token_ns), default=0)
    return round(math.log(max(1e-6, 0.67 * len(few) * 1e9 / max(1, span)), STEP))


def largest(rate: Rate, start: int, first_step: int = 8) -> int | None:
    """The largest index found that is held, as is the one below it, next to one that is not; None where none is.
    Gallops away from `start` with doubling steps until it has both, then halves what lies between.

    Near a limit chance decides (arrivals fall on other steps at every rate), so a rate may be held above one that is
    not: such an answer would not stand, and the search goes down to one that does."""
    step = first_step
    if rate(start).point.held:
        low, high = start, start + step
        while rate(high).point.held:
            if high - start >= LOWEST:  # everything at once is held too
                return high
            step *= 2
            low, high = high, high + step
    else:
        low, high = start - step, start
        while not (run := rate(low)).point.held:
            if start - low >= LOWEST or "refused" in run.point.missed:  # refusals do not come from load
                return None
            step *= 2
            low, high = low - step, low
    while high - low > 1:
        middle = (low + high) // 2
        if rate(middle).point.held:
            low = middle
        else:
            high = middle
    while not (rate(low).point.held and rate(low - 1).point.held):
        if start - low >= LOWEST:
            return None
        low -= 1
    return low
