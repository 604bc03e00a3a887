"""Intervals by the block bootstrap: chunks of text are drawn again, with replacement, and each chunk stays whole.

Tokens of one chunk depend on each other, chunks hardly. All policies are scored on the same tokens, so a chunk brings
the difference that a policy makes there: what makes one chunk harder than another cancels (a paired test).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
_DRAWS = 4000
_COVERAGE = 0.95


def mean(sums: Sequence[float], tokens: Sequence[int]) -> tuple[float, Interval | None]:
    """Σ sums ÷ Σ tokens over chunks, and its 95 % interval; none for fewer than two chunks.

    Percentiles of the bootstrap: with some ten chunks they are a little narrow.
    """
    values, weights = np.asarray(sums, float), np.asarray(tokens, float)
    estimate = float(values.sum() / weights.sum())
    if len(values) < 2:
        return estimate, None
    drawn = _draws(len(values))
    means = values[drawn].sum(1) / weights[drawn].sum(1)
    low, high = np.quantile(means, [(1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2])
    return estimate, (float(low), float(high))


def _draws(chunks: int) -> NDArray[np.int64]:
    """[draws, chunks]: the same for every policy, so that their intervals compare."""
    return np.random.default_rng(0).integers(chunks, size=(_DRAWS, chunks))
