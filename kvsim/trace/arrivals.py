"""Arrival processes: when requests, or conversations, begin. Each is a seeded formula with a mean rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.trace.types import Int
from kvsim.units import NS_PER_S

Float = NDArray[np.float64]
_MAX_S = 100 * 365 * 86_400
KINDS = {
    "poisson": "poisson:RATE",
    "gamma": "gamma:RATE:CV",
    "onoff": "onoff:RATE:ON_S:OFF_S",
    "constant": "constant:RATE",
    "at-once": "at-once",
}


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process. `rate` is the mean over everything, in arrivals per second, so processes compare evenly."""

    kind: str = "poisson"
    rate: float = 1.0
    cv: float = 1.0
    """gamma: standard deviation ÷ mean of the gaps; 1 is Poisson, more is burstier"""
    on_s: float = 10.0
    off_s: float = 10.0
    """onoff: mean lengths of the bursts and of the silences between, both exponential"""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown arrival process {self.kind!r}: write one of {', '.join(KINDS.values())}")
        for name in ("rate", "cv", "on_s", "off_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} of the arrival process is {value}: it must be a number above 0")
        if not 1e-3 <= self.cv <= 1e3:
            raise InputError(f"cv of the arrival process is {self.cv:g}: it must be from 0.001 to 1000")

    def times(self, n: int, rng: np.random.Generator) -> Int:
        """`n` arrival times in nanoseconds, increasing, from 0 on."""
        if self.kind == "at-once":
            return np.zeros(n, np.int64)
        if self.kind == "constant":
            at = np.arange(n) / self.rate
        elif self.kind == "gamma":
            gaps = rng.standard_gamma(1 / self.cv**2, n) * (self.cv**2 / self.rate)
            at = np.cumsum(gaps)
        elif self.kind == "onoff":
            busy_rate = self.rate * (self.on_s + self.off_s) / self.on_s
            at = _with_silences(np.cumsum(exponential(rng, n)) / busy_rate, self.on_s, self.off_s, rng)
        else:
            at = np.cumsum(exponential(rng, n)) / self.rate
        if len(at) and at[-1] > _MAX_S:
            raise InputError(f"{n} arrivals at {self.rate:g} per second take longer than a century: raise the rate")
        return np.rint(at * NS_PER_S).astype(np.int64)

    def at_rate(self, rate: float) -> Arrivals:
        """The same process, as bursty, at another mean rate."""
        return Arrivals(self.kind, rate, self.cv, self.on_s, self.off_s)


def exponential(rng: np.random.Generator, n: int) -> Float:
    """Exponential draws of mean 1 by inversion: it uses one double a draw, so streams stay the same across numpys."""
    draws: Float = -np.log1p(-rng.random(n))
    return draws


def _with_silences(busy: Float, on_s: float, off_s: float, rng: np.random.Generator) -> Float:
    """Times on a clock that runs in bursts only → times on the wall clock."""
    if not len(busy):
        return busy
    burst_ends = np.zeros(0)
    while not len(burst_ends) or burst_ends[-1] < busy[-1]:
        more = exponential(rng, max(16, int(busy[-1] / on_s))) * on_s
        burst_ends = np.concatenate([burst_ends, (burst_ends[-1] if len(burst_ends) else 0.0) + np.cumsum(more)])
    silence: Float = np.concatenate([[0.0], np.cumsum(exponential(rng, len(burst_ends))) * off_s])
    passed: Float = silence[np.searchsorted(burst_ends, busy)]
    return busy + passed


def parse_arrivals(text: str) -> Arrivals:
    """`poisson:2`, `gamma:2:1.5`, `onoff:2:10:30`, `constant:2`, `at-once` → the process. Raises InputError."""
    kind, *numbers = text.split(":")
    if kind not in KINDS:
        raise InputError(f"unknown arrival process {text!r}: write one of {', '.join(KINDS.values())}")
    fields = {"gamma": ("rate", "cv"), "onoff": ("rate", "on_s", "off_s"), "at-once": ()}.get(kind, ("rate",))
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        raise InputError(f"arrival process {text!r} is not understood: write {KINDS[kind]}, with numbers") from None
    if len(values) != len(fields):
        raise InputError(f"arrival process {text!r} is not understood: write {KINDS[kind]}")
    return Arrivals(kind, **dict(zip(fields, values, strict=True)))
