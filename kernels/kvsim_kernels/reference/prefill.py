"""Causal attention of a batch of prompt chunks of unequal length, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def probabilities(q: ArrayLike, k: ArrayLike, scale: float) -> tuple[Array, Array]:
    """softmax(scale q k) of one sequence, and its normaliser.

    q [queries, query heads, head size]: the last `queries` tokens; k [keys, kv heads, head size]: all tokens.
    Query i sees the keys up to its own; query head h reads kv head h // (query heads / kv heads).
    Returns p [query heads, queries, keys] and the log-sum-exp [query heads, queries].
    """
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    queries, keys = len(q), len(k)
    s = np.einsum("ihd,thd->hit", q, np.repeat(k, q.shape[1] // k.shape[1], axis=1)) * scale
    s[:, np.arange(keys)[None, :] > np.arange(keys - queries, keys)[:, None]] = -np.inf
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return p / total, (top + np.log(total))[..., 0]


def prefill_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, starts: Sequence[int], lengths: Sequence[int], scale: float
) -> tuple[Array, Array]:
    """out[i, h] = sum over t of softmax(scale q[i, h] k)[t] v[t].

    q [tokens, query heads, head size]: the chunks, one after the other; sequence b's are q[starts[b]:starts[b + 1]].
    k, v [sequences, capacity, kv heads, head size]: sequence b's context and chunk are its first lengths[b] rows.
    Returns out, shaped as q, and the log-sum-exp [tokens, query heads].
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:2])
    for b, length in enumerate(lengths):
        tokens = slice(starts[b], starts[b + 1])
        if starts[b] < starts[b + 1]:
            p, normaliser = probabilities(q[tokens], k[b, :length], scale)
            out[tokens] = np.einsum("hit,thd->ihd", p, np.repeat(v[b, :length], q.shape[1] // v.shape[2], axis=1))
            lse[tokens] = normaliser.T
    return out, lse
