"""What a cache holds, as float64: the numbers behind the formats and the block table (see ../caches.py)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..caches import Cache, PagedCache

Floats = NDArray[np.float64]


def numbers(cache: Cache) -> tuple[Floats, Floats]:
    """Keys and values [A, B, kv_heads, head_dim], dequantized."""
    return rows(cache, 0), rows(cache, 1)


def rows(cache: Cache, which: int) -> Floats:
    """The keys (0) or the values (1)."""
    stored = (cache.values if which else cache.keys).cpu()
    if cache.format == "int4":
        assert cache.scales is not None
        scales = cache.scales[:, :, :, which].double().cpu().numpy().repeat(cache.group, axis=3)
        codes = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(3).double().numpy()
        with np.errstate(invalid="ignore"):             # a poisoned scale times code 0
            return np.asarray(codes * scales[..., 0] + scales[..., 1])
    codes = stored.float().double().numpy()
    if cache.scales is not None:
        return np.asarray(codes * cache.scales[:, :, :, which, None].double().cpu().numpy())
    return np.asarray(codes * (cache.value_scale if which else cache.key_scale))


def sequence(held: Floats, cache: Cache, index: int, length: int, block_table: torch.Tensor | None) -> Floats:
    """The first `length` rows [length, kv_heads, head_dim] of a sequence, from what `numbers` gave."""
    if not isinstance(cache, PagedCache):
        return held[index, :length]
    assert block_table is not None
    blocks = block_table[index, : -(-length // cache.block_size)].cpu().numpy()
    return np.asarray(held[blocks].reshape(-1, *held.shape[2:])[:length])
