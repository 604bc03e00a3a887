"""Layout `reserve`: room for the longest possible sequence, up front (FasterTransformer; Orca (Max) of the
PagedAttention paper). Simple, never moves or runs out while decoding, and most of it never holds a token."""

from __future__ import annotations

from kvsim.cache.base import Sequence
from kvsim.cache.contiguous import Contiguous


class Reserve(Contiguous):
    """`max_model_len` tokens of contiguous bytes for every sequence."""

    def capacity(self, seq: Sequence, tokens: int) -> int:
        return self.max_model_len
