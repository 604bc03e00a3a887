"""Layout `oracle`: exactly the final length, up front (Orca (Oracle) of the PagedAttention paper). No engine can know
it; it bounds what any contiguous reservation could reach: no internal waste, but reserved and external waste remain."""

from __future__ import annotations

from kvsim.cache.base import Sequence
from kvsim.cache.contiguous import Contiguous


class Oracle(Contiguous):
    """`seq.final` tokens of contiguous bytes for every sequence."""

    def capacity(self, seq: Sequence, tokens: int) -> int:
        return seq.final
