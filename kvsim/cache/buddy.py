"""Layout `buddy`: Orca (Pow2) of the PagedAttention paper (Kwon et al. 2023, §6.1).

The paper's words: the system "over-reserves the space for outputs by at most 2×" (25 tokens of output reserve 32), and
addresses come from a buddy allocator. So a sequence reserves prompt + the output's next power of two, at most
max_model_len, and its interval is a block of 2^k tokens: the part of the block beyond that is internal waste too.
An engine could round the output up only if it knew it roughly; the paper grants Orca that.
"""

from __future__ import annotations

from kvsim.cache.base import Sequence
from kvsim.cache.buddy_space import power_of_two
from kvsim.cache.contiguous import Contiguous


class Buddy(Contiguous):
    """prompt + 2^⌈log₂ output⌉ tokens, in a block of a power of two tokens."""

    def __init__(self, *, pool_bytes: int, token_bytes: int, max_model_len: int) -> None:
        super().__init__(
            pool_bytes=pool_bytes, token_bytes=token_bytes, max_model_len=max_model_len, placement="buddy"
        )

    def capacity(self, seq: Sequence, tokens: int) -> int:
        return min(seq.prompt + power_of_two(max(seq.output, 1)), self.max_model_len)
