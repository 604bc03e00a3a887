"""Distributions of lengths: fixed, lognormal, or the quantiles of something measured. All drawn by inversion or from
one pair of doubles a draw, so that a seed gives the same lengths under any numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError

Float = NDArray[np.float64]
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    value: float

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        return np.full(n, float(self.value))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """The logarithm is normal: median, and sigma of the natural logarithm (1.0: the p90 is 3.6 medians)."""

    median: float
    sigma: float

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        radius = np.sqrt(-2 * np.log1p(-rng.random(n)))  # Box and Muller
        normal: Float = radius * np.cos(2 * math.pi * rng.random(n))
        return self.median * np.exp(self.sigma * normal)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Straight lines between measured values at the shares of `QUANTILES`."""

    values: tuple[float, ...]

    def draw(self, n: int, rng: np.random.Generator) -> Float:
        return np.interp(rng.random(n), QUANTILES, self.values)


Distribution = Fixed | Lognormal | Empirical


def parse_distribution(text: str, what: str) -> Distribution:
    """`512` or `lognormal:MEDIAN:SIGMA` → the distribution. Raises InputError naming `what`."""
    kind, *numbers = text.split(":")
    try:
        values = [float(number) for number in (numbers or [kind])]
    except ValueError:
        values = []
    good = all(math.isfinite(value) and value >= 0 for value in values)
    if good and not numbers and len(values) == 1:
        return Fixed(values[0])
    if good and kind == "lognormal" and len(values) == 2 and values[0] > 0:
        return Lognormal(*values)
    raise InputError(f"{what} is {text!r}, it must be a number of 0 or more, or lognormal:MEDIAN:SIGMA")
