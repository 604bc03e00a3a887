"""No cache: every step is a forward pass over all tokens so far, so n tokens cost 1 + 2 + … + n.

No KV bytes are held. What bounds the batch is the memory of the activations that pass through, taken from the pool
that a cache would use.
"""

from __future__ import annotations

from kvsim.cache.base import MemoryStats, Sequence
from kvsim.cache.paged import Paged


class NoCache(Paged):
    """`token_bytes` is the transient activation memory of one token in flight."""

    chunkable = False

    def __init__(self, *, pool_bytes: int, token_bytes: int) -> None:
        super().__init__(blocks=pool_bytes // token_bytes, block_size=1, token_bytes=token_bytes)
        self.kv_pool_bytes = pool_bytes
        self.pool_bytes = self.blocks * token_bytes

    def stats(self) -> MemoryStats:
        return MemoryStats(pool=self.pool_bytes, used=0, reserved=0, internal=0, cached=0, external=0,
                           free=self.pool_bytes, largest_free=self.pool_bytes)

    def memory_map(self) -> list[tuple[int, int, int]]:
        return []

    def never_fits(self, seq: Sequence) -> bool:
        return seq.final + 1 > self.usable
