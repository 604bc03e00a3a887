"""The largest rate that one replica holds: a bracketed search over a grid of rates, on the same requests every time.

The grid is geometric and the same for everyone. Where the search begins, and which rates it tries, depends on no limit
but only on whether the rates before were held: so a stricter limit never gives a larger rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvsim.cost import CostModel
from kvsim.plan.objectives import Columns, Gaps, Objectives
from kvsim.plan.traffic import Offer, Traffic, Warmth
from kvsim.record import Recorder
from kvsim.setup import Setup
from kvsim.simulate import simulate
from kvsim.trace import Trace, transform
from kvsim.units import NS_PER_S

STEP = 1.04
"""ratio of neighbouring rates: the resolution of the answer"""
LOWEST = 128
"""steps below the first guess at which a rate counts as none (a 150th)"""

FEW = 400
"""requests of the first, small run"""
USUAL = 0.9
"""quantile of how long answers take that a lead-in lasts"""
OFTEN, RARELY = 64, 4096
"""requests that end between two looks at whether a run can be given up; of more than RARELY judged requests more"""


def rate_at(index: int) -> float:
    """The grid's rate in requests a second."""
    return STEP**index


@dataclass(frozen=True)
class Point:
    """One simulated rate of one replica: a point of its load curve."""

    index: int
    rate: float
    """requests that arrived a second; of a run that was given up early, those that were to arrive"""
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
    offer: Offer


Rate = Callable[[int], Run]


@dataclass(frozen=True)
class Load:
    """A trace as the load of one replica at any rate of the grid."""

    traffic: Traffic
    warmth: Warmth
    guess: int
    """place on the grid to begin at"""

    @classmethod
    def of(cls, trace: Trace, setup: Setup) -> Load:
        """The guess: two thirds of the rate at which a few hundred requests that are all there at once get done. How
        long an answer takes is read off that run too, so neither hangs on any objective."""
        few = transform.limit(trace, FEW)
        alone = few.with_columns(arrival_ns=few.arrival_ns * 0, after_parent_ns=np.minimum(few.after_parent_ns, 0))
        record, _ = simulate(alone, setup, setup.cost)
        begun, ended = (np.frombuffer(record.requests[c], np.int64) for c in ("scheduled_ns", "last_token_ns"))
        took = (ended - begun)[ended >= 0]
        answer_s = float(np.quantile(took, USUAL)) / NS_PER_S if len(took) else 0.0
        rate = 0.67 * len(few) * NS_PER_S / max(1, int(ended.max(initial=0)))
        shared = setup.memory.tokens if setup.spec.prefix != "off" else 0
        return cls(Traffic(trace), Warmth.of(trace, answer_s, shared), round(math.log(max(1e-6, rate), STEP)))

    def at(self, index: int) -> Offer:
        """The requests at a rate of the grid."""
        rate, warmth, n = rate_at(index), self.warmth, len(self.traffic.trace)
        return self.traffic.at(rate, warmth.lead_s(rate, n), warmth.tail_s(rate, n))


def rater(
    load: Load, setup: Setup, cost: CostModel, objectives: Objectives, tried: dict[int, Point] | None = None
) -> Rate:
    """Simulates a rate of the grid, once: common random numbers, for only the starts of conversations move.

    `tried` collects the points."""
    seen: dict[int, Run] = {}

    def run(index: int) -> Run:
        if index not in seen:
            seen[index] = evaluate(load.at(index), setup, cost, objectives, index)
            if tried is not None:
                tried[index] = seen[index].point
        return seen[index]

    return run


def evaluate(
    offer: Offer, setup: Setup, cost: CostModel, objectives: Objectives, index: int, patient: bool = False
) -> Run:
    """Simulate `offer` until all its judged requests have ended or, but for `patient`, an objective is missed for sure.
    """
    lost: list[str] = []
    gaps = Gaps(offer) if any(o.metric == "itl" for o in objectives.latency) else None
    hopeless = objectives.hopeless(offer)
    often = OFTEN * max(1, len(offer.judged) // RARELY)
    asked = 0

    def stop(record: Recorder, now: int) -> bool:
        nonlocal asked
        asked += 1
        if gaps is not None:
            gaps.look(record, now)
        if asked % often:
            return False
        name = None if patient else hopeless(record, now)
        if name is not None:
            lost.append(name)
        return name is not None or offer.over(record)

    record, _ = simulate(offer.trace, setup, cost, stop=stop)
    if lost:
        return Run(Point(index, rate_at(index), {}, tuple(lost), None, None), record, offer)
    values = objectives.measure(record, offer, gaps)
    run = Columns(record, offer.trace, offer.judged)
    tpot = run.statistic("tpot", 0.5)
    rate = rate_at(index)
    if (offer.trace.parent >= 0).any():
        rate *= offer.arrived(record) / len(offer.judged)
    point = Point(
        index, rate, values, objectives.missed(values), rate * run.output_tokens / len(offer.judged) or None,
        1 / tpot if tpot else None,
    )
    return Run(point, record, offer)


def largest(rate: Rate, start: int, first_step: int) -> int | None:
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
