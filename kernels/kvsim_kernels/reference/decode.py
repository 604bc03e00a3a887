"""Decode attention in float64."""

from __future__ import annotations

import numpy as np
import torch

from ..caches import Cache
from .cache import Floats, numbers, sequence


def decode_attention(
    q: torch.Tensor,
    cache: Cache,
    lengths: torch.Tensor,
    block_table: torch.Tensor | None = None,
    scale: float | None = None,
) -> Floats:
    """softmax(scale q K^T) V for each sequence and head, [sequences, heads, head_dim]; zeros where length is 0."""
    keys, values = numbers(cache)
    queries = q.double().cpu().numpy()
    out = np.zeros(queries.shape)
    group = q.shape[1] // cache.kv_heads
    for i, length in enumerate(lengths.tolist()):
        if length == 0:
            continue
        k, v = (sequence(held, cache, i, length, block_table).repeat(group, axis=1) for held in (keys, values))
        with np.errstate(invalid="ignore", over="ignore"):
            scores = np.einsum("hd,thd->ht", queries[i], k) * (q.shape[2] ** -0.5 if scale is None else scale)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[i] = np.einsum("ht,thd->hd", weights, v) / weights.sum(axis=1, keepdims=True)
    return out
