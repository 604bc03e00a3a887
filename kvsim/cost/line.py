"""Piecewise linear functions: `Line`, whose scalar and vector evaluations agree bit for bit, and look-ups in tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.device import Ragged

Floats = NDArray[np.float64]


class Line:
    """y over x, linear between knots and beyond them with the given end slopes.

    Both paths compute `base + slope·(x − origin)` of the segment that holds x, in this order and in float64; NumPy's
    own `interp` is not used because a fused multiply-add would round differently on some machines."""

    __slots__ = ("_arrays", "knots", "segments")

    def __init__(self, x: Sequence[float], y: Sequence[float], below: float = 0.0, above: float = 0.0) -> None:
        self.knots = [float(knot) for knot in x]
        inner = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
        self.segments = [(float(origin), float(base), float(slope)) for origin, base, slope in zip(
            [x[0], *x], [y[0], *y], [below, *inner, above], strict=True)]
        """(origin, base, slope), one more than knots: `bisect_right(knots, x)` is the index"""
        self._arrays: tuple[Floats, Floats, Floats, Floats] | None = None

    def at(self, x: float) -> float:
        """y at one x."""
        origin, base, slope = self.segments[bisect_right(self.knots, x)]
        return base + slope * (x - origin)

    def over(self, x: Floats, first: float, last: float) -> Floats:
        """y at each of a monotone row of x that runs from `first` to `last`."""
        segment = bisect_right(self.knots, first)
        if segment == bisect_right(self.knots, last):
            origin, base, slope = self.segments[segment]
            return base + slope * (x - origin)
        if self._arrays is None:  # many lines are only ever asked for points of one segment
            origins, bases, slopes = np.array(self.segments).T
            self._arrays = np.array(self.knots), origins.copy(), bases.copy(), slopes.copy()
        knots, origins, bases, slopes = self._arrays
        index = knots.searchsorted(x, side="right")
        y: Floats = bases[index] + slopes[index] * (x - origins[index])
        return y


def between(axis: Sequence[float], x: float) -> tuple[int, int, float]:
    """(i, j, f): x lies at the fraction f from axis[i] to axis[j]; clamped to the axis' ends."""
    j = bisect_right(axis, x)
    if j == 0:
        return 0, 0, 0.0
    if j == len(axis):
        return j - 1, j - 1, 0.0
    return j - 1, j, (x - axis[j - 1]) / (axis[j] - axis[j - 1])


def interpolate(axis: Sequence[float], values: Sequence[float], x: float) -> float:
    """The value at x, linear between knots, constant beyond them."""
    j = bisect_right(axis, x)
    if j == 0:
        return values[0]
    if j == len(axis):
        return values[-1]
    low, left = values[j - 1], axis[j - 1]
    return low + (x - left) / (axis[j] - left) * (values[j] - low)


def ragged_at(table: Ragged, outer: float, inner: float) -> float:
    """The ratio at one point: along the inner axis first, then between the two rows."""
    i, j, f = between(table.outer, outer)
    low = interpolate(table.inner[i], table.ratio[i], inner)
    if i == j:
        return low
    return low + f * (interpolate(table.inner[j], table.ratio[j], inner) - low)
