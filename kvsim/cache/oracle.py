"""Layout `oracle`: exactly the final length, up front (Orca (Oracle) of the PagedAttention paper). No engine can know
it. The paper places all of Orca's variants by a buddy allocator (§6.1), which `kvsim.cache.build` asks for: what
rounding to its blocks wastes is internal."""

from __future__ import annotations

from kvsim.cache.base import Sequence
from kvsim.cache.contiguous import Contiguous


class Oracle(Contiguous):
    """`seq.final` tokens of contiguous bytes for every sequence."""

    def capacity(self, seq: Sequence, tokens: int) -> int:
        return seq.final
