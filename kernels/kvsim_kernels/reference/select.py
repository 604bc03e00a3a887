"""Which cached tokens a sequence keeps, in NumPy: the choices of StreamingLLM, H2O and SnapKV.

Each returns token indices in ascending order, as `kv_compact` wants them. Ties go to the newer token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int32]


def window(length: int, sinks: int, recent: int) -> Indices:
    """The first `sinks` and the last `recent` of `length` tokens (Xiao et al. 2023, arXiv:2309.17453)."""
    if length <= sinks + recent:
        return np.arange(length, dtype=np.int32)
    return np.concatenate([np.arange(sinks), np.arange(length - recent, length)]).astype(np.int32)


def heavy_hitters(scores: ArrayLike, budget: int, recent: int) -> Indices:
    """For each head, the last `recent` tokens and the best-scored of the others, `budget` in all.

    H2O (Zhang et al. 2023, arXiv:2306.14048).
    scores [heads, tokens]: attention that each token received. Returns [heads, min(budget, tokens)].
    """
    scores = np.asarray(scores, np.float64)
    heads, length = scores.shape
    if not 0 <= recent <= budget:
        raise ValueError(f"{recent} recent tokens do not fit a budget of {budget}")
    if length <= budget:
        return np.tile(np.arange(length, dtype=np.int32), (heads, 1))
    old = length - recent
    newest_first = np.argsort(-scores[:, :old][:, ::-1], axis=1, kind="stable")
    best = np.sort(old - 1 - newest_first[:, : budget - recent], axis=1)
    return np.concatenate([best, np.tile(np.arange(old, length), (heads, 1))], axis=1).astype(np.int32)


def snapkv(scores: ArrayLike, budget: int, observe: int, kernel: int = 7) -> Indices:
    """A prompt's last `observe` tokens, and of the others the best by max-pooled score, `budget` in all.

    scores [heads, tokens]: attention that each token received from the last `observe` ones. Pooling over `kernel`
    neighbours keeps clusters whole (Li et al. 2024, arXiv:2404.14469). Returns [heads, min(budget, tokens)].
    """
    scores = np.asarray(scores, np.float64)
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"the pooling kernel must be odd and positive, not {kernel}")
    side = kernel // 2
    old = np.pad(scores[:, : max(scores.shape[1] - observe, 0)], ((0, 0), (side, side)), constant_values=-np.inf)
    pooled = scores.copy()
    if old.shape[1] >= kernel:
        pooled[:, : old.shape[1] - 2 * side] = np.lib.stride_tricks.sliding_window_view(old, kernel, axis=1).max(-1)
    return heavy_hitters(pooled, budget, observe)
