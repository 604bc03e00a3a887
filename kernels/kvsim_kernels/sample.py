"""Random inputs for checks and benchmarks, with NaN wherever a kernel has no business to look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .caches import Cache, ContiguousCache, Device, PagedCache


@dataclass(frozen=True)
class Batch:
    """Chunks of queries over a cache, as `prefill_attention` takes them, and the same keys and values for NumPy."""

    q: torch.Tensor
    cache: Cache
    lengths: torch.Tensor
    query_starts: torch.Tensor
    block_table: torch.Tensor | None
    keys: NDArray[np.float64]  # [sequences, capacity, kv heads, head size], NaN past each length
    values: NDArray[np.float64]


def batch(
    queries: list[int],
    lengths: list[int],
    kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    block_size: int = 0,
    device: Device = "cpu",
    seed: int = 0,
) -> Batch:
    """queries[b] query tokens over lengths[b] cached ones. Paged if block_size: blocks in random order, with spares."""
    random = torch.Generator().manual_seed(seed)
    sequences, size = len(lengths), block_size or 1
    blocks = -(-max(1, *lengths) // size)
    capacity = blocks * size

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    q = normal(sum(queries), kv_heads * group, head_dim)
    keys, values = (normal(sequences, capacity, kv_heads, head_dim) for _ in range(2))
    for b, length in enumerate(lengths):
        keys[b, length:], values[b, length:] = torch.nan, torch.nan
    cache: Cache
    table = None
    if block_size:
        order = torch.randperm(sequences * blocks + 3, generator=random)[: sequences * blocks]

        def scattered(tensor: torch.Tensor) -> torch.Tensor:
            pool = torch.full((sequences * blocks + 3, block_size, kv_heads, head_dim), torch.nan).to(dtype)
            pool[order] = tensor.view(-1, block_size, kv_heads, head_dim)
            return pool.to(device)

        table = order.view(sequences, blocks).int()
        for b, length in enumerate(lengths):
            table[b, -(-length // block_size) :] = -1
        cache = PagedCache(scattered(keys), scattered(values))
    else:
        cache = ContiguousCache(keys.to(device), values.to(device))
    return Batch(
        q.to(device),
        cache,
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.tensor([0, *np.cumsum(queries)], dtype=torch.int32, device=device),
        None if table is None else table.to(device),
        keys.double().numpy(),
        values.double().numpy(),
    )
