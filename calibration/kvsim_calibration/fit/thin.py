"""Tables with few knots: a knot goes where linear interpolation between its neighbours is as good as the tolerance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvsim.cost.line import Floats, ragged_at
from kvsim.device import Ragged

WHOLE = 0.4
"""ratio from which on whole percent are fine enough: off by 0.3 % on average, far below any measurement's noise"""


def rounded(ratios: Floats | list[float]) -> tuple[float, ...]:
    """Ratios as they are written: whole percent, small ones three digits."""
    return tuple(round(float(r), 2) if r >= WHOLE else float(f"{r:.3g}") for r in ratios)


def knots(x: Floats, y: Floats, tolerance: float) -> list[int]:
    """Indices of the knots of a line that misses no y by more than `tolerance`, relative. x increases.

    Splits at the worst miss until there is none (Ramer 1972; Douglas and Peucker 1973), the error being relative."""
    kept, open_ = {0, len(x) - 1}, [(0, len(x) - 1)]
    while open_:
        low, high = open_.pop()
        if high - low < 2:
            continue
        inner = slice(low + 1, high)
        chord = y[low] + (y[high] - y[low]) * (x[inner] - x[low]) / (x[high] - x[low])
        miss = np.abs(chord / y[inner] - 1)
        if miss.max() > tolerance:
            worst = low + 1 + int(miss.argmax())
            kept.add(worst)
            open_ += [(low, worst), (worst, high)]
    return sorted(kept)


def ragged(lines: Mapping[float, tuple[Floats, Floats]], tolerance: float) -> Ragged:
    """outer value → (inner values, ratios) as a table: inner knots first, then whole outer rows whose knots the rows
    beside them predict within `tolerance`, the least missed row first."""
    rows: dict[float, tuple[list[float], list[float]]] = {}
    for outer, (x, y) in sorted(lines.items()):
        chosen = knots(x, y, tolerance)
        rows[outer] = (x[chosen].tolist(), list(rounded(y[chosen])))
    misses = {at: _miss(rows, at) for at in list(rows)[1:-1]}
    while misses and min(misses.values()) <= tolerance:
        gone = min(misses, key=lambda at: misses[at])
        order = list(rows)
        place = order.index(gone)
        del rows[gone], misses[gone]
        for beside in (order[place - 1], order[place + 1]):
            if beside in misses:
                misses[beside] = _miss(rows, beside)
    return _table(rows)


def _miss(rows: dict[float, tuple[list[float], list[float]]], at: float) -> float:
    """How badly the rows beside `at` predict it, relative."""
    order = list(rows)
    place = order.index(at)
    beside = _table({outer: rows[outer] for outer in (order[place - 1], order[place + 1])})
    return max(abs(ragged_at(beside, at, x) / y - 1) for x, y in zip(*rows[at], strict=True))


def _table(rows: dict[float, tuple[list[float], list[float]]]) -> Ragged:
    return Ragged.model_construct(outer=tuple(rows), inner=tuple(tuple(x) for x, _ in rows.values()),
                                  ratio=tuple(tuple(y) for _, y in rows.values()))
