"""What `plan` answers: candidates with their reasons, the best of them, load curves and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvsim.plan.objectives import Objectives
from kvsim.plan.search import Point

HOUR_S = 3600
TOO_SHORT = "trace too short"
"""`limit` of a candidate whose rate no search can find: all requests at once are no load for its replica"""


@dataclass(frozen=True)
class Candidate:
    """One device × TP × policy, and the largest rate one replica of it holds."""

    device: str
    tp: int
    policy: str
    tier: str | None = None
    """how its cost model was made: measured, imported or datasheet"""
    rate_per_replica: float | None = None
    """requests a second; None: not reachable, `reason` says why"""
    output_tokens_per_s: float | None = None
    """of one replica at that rate"""
    limit: str | None = None
    """KV memory, prefill compute, decode bandwidth, interconnect, host, queueing, batch size, or TOO_SHORT"""
    reason: str = ""
    """why that is the limit, or why nothing is reachable"""
    requests: int = 0
    """that judged it, at every rate"""
    curve: tuple[Point, ...] = ()
    """every rate that was simulated, in order; those that only a first search looked at are judged by its requests"""
    price_per_gpu_hour: float | None = None
    power_watts: float | None = None
    """of one GPU at its board's limit"""
    replicas: int | None = None
    """fewest for the rate that was asked for; None where there is no such rate"""
    cost_per_million_output_tokens: float | None = None
    kwh_per_million_output_tokens: float | None = None
    interval: dict[str, list[float]] = field(default_factory=dict)
    """[low, high] of rate_per_replica, replicas and cost; empty where it was not asked for"""

    @property
    def reachable(self) -> bool:
        return self.rate_per_replica is not None

    @property
    def gpus(self) -> int | None:
        return None if self.replicas is None else self.replicas * self.tp

    @property
    def label(self) -> str:
        return f"{self.tp} × {self.device} {self.policy}"

    def sized(self, target: float | None, tokens: float) -> Candidate:
        """With replicas, cost and energy for `target` requests a second of `tokens` output tokens each.

        Replicas are whole: idle capacity of the last one is paid. Without a target, those of one replica at its
        largest rate."""
        if self.rate_per_replica is None:
            return self
        count = None if target is None else replicas_for(target, self.rate_per_replica)
        rate = target if target is not None else self.rate_per_replica
        gpus = (count or 1) * self.tp
        millions_per_hour = rate * tokens * HOUR_S / 1e6
        watts, price = self.power_watts, self.price_per_gpu_hour
        return replace(
            self, replicas=count,
            cost_per_million_output_tokens=None if price is None else gpus * price / millions_per_hour,
            kwh_per_million_output_tokens=None if watts is None else gpus * watts / 1000 / millions_per_hour,
        )

    def without_rate(self, advice: str) -> Candidate:
        """Of a search that no rate was too fast for: those tried, up to thousands a second, say nothing of what a
        replica holds."""
        few = f"{self.requests:,} requests are too few to load a replica"
        reason = f"{few}: they meet the objectives however fast they come; {advice}"
        return replace(self, rate_per_replica=None, output_tokens_per_s=None, reason=reason, curve=())

    def with_rates(self, rates: Iterable[float], target: float | None, tokens: float) -> Candidate:
        """With the interval that these other largest rates give."""
        ends = [min(rates := list(rates)), max(rates)]
        sized = [replace(self, rate_per_replica=rate).sized(target, tokens) for rate in ends]
        interval: dict[str, list[float]] = {"rate_per_replica": ends}
        if target is not None:
            interval["replicas"] = [float(c.replicas or 0) for c in reversed(sized)]
        costs = [c.cost_per_million_output_tokens for c in reversed(sized)]
        if None not in costs:
            interval["cost_per_million_output_tokens"] = [float(c or 0) for c in costs]
        return replace(self, interval=interval)

    def with_curve(self, points: Iterable[Point]) -> Candidate:
        """With those of these points whose rates its own curve lacks."""
        every = {point.index: point for point in (*points, *self.curve)}
        return replace(self, curve=tuple(every[index] for index in sorted(every)))

    def to_json(self) -> dict[str, Any]:
        return {
            "device": self.device, "tp": self.tp, "policy": self.policy, "reachable": self.reachable,
            "replicas": self.replicas, "gpus": self.gpus, "rate_per_replica": self.rate_per_replica,
            "output_tokens_per_s_per_replica": self.output_tokens_per_s,
            "cost_per_million_output_tokens": self.cost_per_million_output_tokens,
            "kwh_per_million_output_tokens": self.kwh_per_million_output_tokens, "limit": self.limit,
            "reason": self.reason, "interval": self.interval or None, "tier": self.tier, "requests": self.requests,
            "curve": [
                {"rate": p.rate, "held": p.held, "missed": list(p.missed), "values": p.values,
                 "output_tokens_per_s_per_gpu": None if p.output_tokens_per_s is None
                 else p.output_tokens_per_s / self.tp, "output_tokens_per_s_per_user": p.user_tokens_per_s}
                for p in self.curve
            ],
        }


STUDENT = 1.86
"""standard deviations to each side that hold 90 % where the deviation itself is estimated from about eight values"""


def around(rate: float, first: float, ends: Iterable[float], others: Iterable[float], share: float) -> list[float]:
    """[low, high] of a candidate's largest rate, which a first search put at `first`: what another trace as long, of
    other people, would have given, with a cost model off by its error. Both are independent, so their logarithms add
    up in squares.

    `ends`, `others`: rates found like `first`, at the cost model's ends and for other people. These differ by what
    two samples differ by, and less the larger they are. `share`: requests of the first search ÷ of the last."""
    logs = np.log(list(others))
    spread = STUDENT * float(logs.std(ddof=1)) * math.sqrt(2 * share) if len(logs) > 1 else 0.0
    sides = np.log([first, *ends]) - math.log(first)
    return [rate * math.exp(-math.hypot(sides.min(), spread)), rate * math.exp(math.hypot(sides.max(), spread))]


def replicas_for(target: float, rate: float) -> int:
    """Fewest replicas of `rate` that carry `target`, each getting its equal part."""
    return max(1, math.ceil(target / rate - 1e-9))


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A rate of a candidate that no other one beats in both tokens a second a GPU and a user."""

    candidate: int
    """place in Answer.candidates"""
    rate: float
    gpu_tokens_per_s: float
    user_tokens_per_s: float


@dataclass(frozen=True)
class Answer:
    """The plan."""

    candidates: tuple[Candidate, ...]
    best: int | None
    """place of the answer in `candidates`; None: no candidate reaches the objectives"""
    by: str
    """what the best is best in: cost or GPUs"""
    target_rate: float | None
    """requests a second to carry: the trace's, unless another was given"""
    requests: int
    """simulated in every run …"""
    trace_requests: int
    """… of so many in the trace"""
    objectives: Objectives
    notes: tuple[str, ...] = ()

    @property
    def answer(self) -> Candidate | None:
        return None if self.best is None else self.candidates[self.best]

    @property
    def too_short(self) -> Candidate | None:
        """For want of requests to load this one there is no answer."""
        return next((c for c in self.candidates if c.limit == TOO_SHORT), None)

    def pareto(self) -> list[ParetoPoint]:
        """The front over every rate simulated to its end that its replica keeps up with, fastest for the user first."""
        points = [
            ParetoPoint(number, p.rate, p.output_tokens_per_s / c.tp, p.user_tokens_per_s)
            for number, c in enumerate(self.candidates) for p in c.curve
            if p.output_tokens_per_s and p.user_tokens_per_s and "growth" not in p.missed
        ]
        points.sort(key=lambda p: (-p.user_tokens_per_s, -p.gpu_tokens_per_s))
        front: list[ParetoPoint] = []
        for point in points:
            if not front or point.gpu_tokens_per_s > front[-1].gpu_tokens_per_s:
                front.append(point)
        return front

    def to_json(self) -> dict[str, Any]:
        """The object of `kvsim plan --json`."""
        answer = self.answer
        return {
            "reachable": answer is not None, "answer": answer.to_json() if answer else None,
            "candidates": [c.to_json() for c in self.candidates], "best_by": self.by,
            "target_rate_per_s": self.target_rate, "requests_simulated": self.requests,
            "requests_in_trace": self.trace_requests,
            "pareto": [
                {"device": self.candidates[p.candidate].device, "tp": self.candidates[p.candidate].tp,
                 "policy": self.candidates[p.candidate].policy, "rate": p.rate,
                 "output_tokens_per_s_per_gpu": p.gpu_tokens_per_s, "output_tokens_per_s_per_user": p.user_tokens_per_s}
                for p in self.pareto()
            ],
            "notes": list(self.notes),
        }


def choose(candidates: Iterable[Candidate]) -> tuple[int | None, str]:
    """(place of the best, what it is best in): the cheapest where every candidate has a price, else the fewest GPUs;
    of equals, the one with most room. None is best where the requests do not load one: it may hold more than any."""
    found = list(candidates)
    able = [i for i, c in enumerate(found) if c.reachable]
    if any(c.limit == TOO_SHORT for c in found):
        able = []
    priced = all(found[i].cost_per_million_output_tokens is not None for i in able)

    def rank(i: int) -> tuple[float, ...]:
        c = found[i]
        spare = (c.replicas or 1) * (c.rate_per_replica or 0.0)
        per_gpu = -(c.rate_per_replica or 0.0) / c.tp
        gpus = float(c.gpus) if c.gpus is not None else per_gpu
        return (c.cost_per_million_output_tokens or 0.0, gpus, -spare) if priced else (gpus, -spare)

    return min(able, key=rank, default=None), "cost" if priced else "GPUs"
