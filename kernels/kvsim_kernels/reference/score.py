"""Attention that each cached token received, in float64: the score of H2O (Zhang et al. 2023, arXiv:2306.14048)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from .prefill import Array, probabilities


def kv_score(q: ArrayLike, k: ArrayLike, starts: Sequence[int], lengths: Sequence[int], scale: float) -> Array:
    """scores[b, kv head, t] = sum over the queries of sequence b and the heads of the group of softmax(scale q k)[t].

    Shapes as in `prefill_attention`; scores [sequences, kv heads, capacity], 0 past a sequence's length.
    """
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    sequences, capacity, kv_heads, _ = k.shape
    scores = np.zeros((sequences, kv_heads, capacity))
    for b, length in enumerate(lengths):
        if starts[b] < starts[b + 1]:
            p, _ = probabilities(q[starts[b] : starts[b + 1]], k[b, :length], scale)
            scores[b, :, :length] = p.sum(1).reshape(kv_heads, -1, length).sum(1)
    return scores
