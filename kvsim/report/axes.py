"""Scales and ticks: where a value lies on a chart, and which values are worth a label."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.units import format_duration

Float = NDArray[np.float64]

_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low … high` to pixels from `begin … end`, linearly or by logarithm."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, values: float | Float) -> Float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        data = np.log10(np.maximum(values, self.low)) if self.log else np.asarray(values)
        place: Float = self.begin + (self.end - self.begin) * (data - low) / ((high - low) or 1)
        return place


Tick = tuple[float, str]


def linear_ticks(high: float, most: int = 5) -> list[Tick]:
    """Round values from 0 to `high`, at most about `most` of them."""
    if high <= 0:
        return [(0.0, "0")]
    step = _round_step(high / most)
    return [(i * step, f"{i * step:,.10g}") for i in range(int(high / step + 1e-9) + 1)]


def percent_ticks() -> list[Tick]:
    """0 to 100 % in quarters, as shares."""
    return [(q / 4, f"{q * 25}%") for q in range(5)]


def clock_ticks(high_s: float, most: int = 7) -> list[Tick]:
    """Round times from 0 to `high_s` seconds: 10 s, 5 min, 2 h."""
    step = next((s for s in _CLOCK_STEPS if high_s / s <= most), _CLOCK_STEPS[-1] * math.ceil(high_s / most / 86400))
    if high_s < 2:
        return [(value, format_duration(value)) for value, _ in linear_ticks(high_s, most)]
    return [(float(t), _clock(t)) for t in range(0, int(high_s) + 1, step)]


def log_ticks(low: float, high: float) -> list[Tick]:
    """Durations at 1, and where few decades are shown 2 and 5, times powers of ten between `low` and `high` seconds."""
    decades = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 5, 7) if decades < 0.9 else (1, 2, 5) if decades < 2.2 else (1, 3) if decades < 3.2 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [v for p in powers for m in steps if low * 0.999 <= (v := m * 10.0**p) <= high * 1.001]
    if len(values) < 3:  # less than a decade: even steps
        step = _round_step((high - low) / 4)
        values = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [(v, _short(v)) for v in values]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= least * 0.999)


def _clock(seconds: int) -> str:
    if seconds == 0:
        return "0"
    if seconds % 3600 == 0:
        return f"{seconds // 3600} h"
    if seconds >= 3600:
        return f"{seconds // 3600}:{seconds % 3600 // 60:02d} h"
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds} s"


def _short(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= scale * 0.999:
            return f"{seconds / scale:,.4g} {unit}"
    return "0"
