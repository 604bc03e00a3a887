"""How sure an answer is: where it came from, and the relative error that comes with that."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from kvsim.device import HeldOutError, Provenance, Tier
from kvsim.device.provenance import TIERS

How = Literal["exact", "interpolated", "nearest", "form"]
"""exact: this very key was measured · interpolated between neighbouring keys · nearest key's ratio · physical form."""

P95_TO_90 = 0.84
"""half-width that holds 90 % of a normal error ÷ the one that holds 95 %"""
UNFUSED = HeldOutError(median=0.15, p95=0.6)
"""prefill and decode in one step added up because nobody measured them as one kernel on this device: on the GPU where
it was measured, decode cost 1.3 to 2.5 times its own time (LLMServingSim's tables, RTX PRO 6000, FlashAttention 2)"""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a term's numbers come from, with held-out relative errors inside and outside its grid."""

    tier: Tier
    how: How
    source: str
    median: float
    p95: float
    beyond_median: float
    beyond_p95: float


@dataclass(frozen=True, slots=True)
class PartCost:
    """One term of a step."""

    ns: float
    tier: Tier
    how: How
    error_median: float
    error_p95: float
    source: str = ""
    """key of the profile's provenance"""
    beyond_grid: bool = False

    def times(self, factor: float) -> PartCost:
        return replace(self, ns=self.ns * factor)


@dataclass(frozen=True, slots=True)
class Band:
    """The truth lies between low and high times the prediction in 90 % of cases."""

    low: float
    high: float


def origin(provenance: Provenance | None, how: How, source: str, form_error: HeldOutError) -> Origin:
    """The origin of numbers reached by `how`; `form_error` is the physical form's own error.

    A fallback for which the profile has no number is taken to be as bad as the next worse one it has."""
    if provenance is None:
        return Origin("datasheet", "form", source, form_error.median, form_error.p95, form_error.median, form_error.p95)
    fallback = provenance.fallback
    ladder = [("exact", provenance.points), ("interpolated", fallback.interpolated), ("interpolated", provenance.keys),
              ("nearest", fallback.nearest), ("form", fallback.form)]
    order = ("exact", "interpolated", "nearest", "form")
    error = next((e for rung, e in ladder if e and order.index(rung) >= order.index(how)), form_error)
    beyond = fallback.beyond or form_error
    return Origin(provenance.tier, how, source, error.median, error.p95,
                  max(error.median, beyond.median), max(error.p95, beyond.p95))


def part(ns: float, where: Origin, beyond: bool = False) -> PartCost:
    """A term of `ns` from there; `beyond`: outside the grid of its curve."""
    median, p95 = (where.beyond_median, where.beyond_p95) if beyond else (where.median, where.p95)
    return PartCost(ns, where.tier, where.how, median, p95, where.source, beyond)


def worst(tiers: Iterable[Tier]) -> Tier:
    """The least sure of them."""
    return max(tiers, key=TIERS.index, default="datasheet")


def merge(parts: Iterable[PartCost]) -> PartCost:
    """Several kernels of a kind as one term. They are off together (one library, one clock), so their errors are
    averaged by time, not as roots of squares; tier and source are those of the longest."""
    parts = list(parts)
    biggest = max(parts, key=lambda p: p.ns)
    total = sum(p.ns for p in parts)
    weight = total or 1.0
    return replace(biggest, ns=total, error_median=sum(p.ns * p.error_median for p in parts) / weight,
                   error_p95=sum(p.ns * p.error_p95 for p in parts) / weight,
                   beyond_grid=any(p.beyond_grid for p in parts))


def band(parts: Iterable[PartCost], common: float = 0.0) -> Band:
    """The 90 % band of a step: its terms err independently of each other, and as much below as above in ratio.

    `common` is the half-width of an error that all of them share."""
    parts = list(parts)
    total = sum(p.ns for p in parts) or 1.0
    width = math.sqrt(sum((p.ns / total * p.error_p95 * P95_TO_90) ** 2 for p in parts))
    width = math.hypot(width, common)
    return Band(1.0 / (1.0 + width), 1.0 + width)
