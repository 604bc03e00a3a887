"""Ticks: which values of an axis are worth a label."""

from __future__ import annotations

import math

_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


def linear_ticks(high: float, most: int = 5) -> list[float]:
    """Round values from 0 to `high`, at most about `most` of them."""
    if high <= 0:
        return [0.0]
    step = _round_step(high / most)
    return [i * step for i in range(int(high / step + 1e-9) + 1)]


def clock_ticks(high_s: float, most: int = 7) -> list[float]:
    """Round times from 0 to `high_s` seconds: 10 s, 5 min, 2 h."""
    if high_s < 2:
        return linear_ticks(high_s, most)
    step = next((s for s in _CLOCK_STEPS if high_s / s <= most), _CLOCK_STEPS[-1] * math.ceil(high_s / most / 86400))
    return [float(t) for t in range(0, int(high_s) + 1, step)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, and where few decades are shown 2 and 5, times powers of ten between `low` and `high`."""
    decades = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 5, 7) if decades < 0.9 else (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.2 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [v for p in powers for m in steps if low * 0.999 <= (v := m * 10.0**p) <= high * 1.001]
    if len(values) < 3:  # less than a decade: even steps
        step = _round_step((high - low) / 4)
        values = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return values


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= least * 0.999)
