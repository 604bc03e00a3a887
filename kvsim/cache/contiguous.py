"""What the contiguous layouts share: one interval of a real address space for each sequence, taken when it is admitted.

A layout that knows its length up front (`reserve`, `oracle`, `buddy`) only says how many tokens a sequence gets
(`capacity`); nothing has to be decided after admission, so every horizon is open. `fit` adds growth.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from kvsim.cache.base import Allocator, MemoryStats, Sequence
from kvsim.cache.buddy_space import BuddySpace
from kvsim.cache.space import FitRule, HoleSpace, Space

Placement = Literal[FitRule, "buddy"]


def make_space(pool_bytes: int, token_bytes: int, placement: Placement) -> Space:
    """The pool as a space that places by first fit, best fit or the buddy rule (blocks of 2^k tokens)."""
    if placement == "buddy":
        return BuddySpace(pool_bytes, token_bytes)
    return HoleSpace(pool_bytes, placement, token_bytes)


class Interval:
    """What one sequence holds: `capacity` tokens' room in bytes [start, start + length)."""

    __slots__ = ("capacity", "filled", "length", "start")

    def __init__(self, start: int, length: int, capacity: int, filled: int) -> None:
        self.start = start
        self.length = length
        self.capacity = capacity
        self.filled = filled
        """tokens written, or being written in the step at hand; stale while the sequence decodes"""


class Contiguous(Allocator):
    """One interval a sequence. Sums of tokens are kept, so `stats` and `advance` cost the same for any batch.

    Invariants: intervals lie inside the space, overlap neither each other nor a hole, and tile it together with the
    holes; a sequence never holds more tokens than its capacity.
    """

    def __init__(
        self, *, pool_bytes: int, token_bytes: int, max_model_len: int, placement: Placement = "first"
    ) -> None:
        self.pool_bytes = pool_bytes
        self.token_bytes = token_bytes
        self.max_model_len = max_model_len
        self.space = make_space(pool_bytes, token_bytes, placement)
        self.step = 0
        self._largest = self.space.largest_hole
        """of the empty space"""
        self._live: dict[Sequence, Interval] = {}
        self._decoding = 0
        self._sum_base = 0
        self._sum_filled = 0
        """tokens of the sequences that do not decode"""
        self._will_fill = 0
        """tokens that the intervals will hold in the end: Σ min(capacity, final)"""
        self.padding = 0
        """bytes of the intervals beyond their capacity: what the placement's rounding takes"""

    def capacity(self, seq: Sequence, tokens: int) -> int:
        """Tokens to make room for when `seq` enters with `tokens` to compute now."""
        raise NotImplementedError

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        if self._room(seq, max(tokens, ensure)) > self.space.largest_hole:
            return False
        capacity = self.capacity(seq, tokens)
        length = self._room(seq, tokens)
        start = self.space.take(length)
        seq.cached = seq.computed = 0
        seq.store = self._live[seq] = Interval(start, length, capacity, tokens)
        self._sum_filled += tokens
        self._will_fill += min(capacity, seq.final)
        self.padding += length - capacity * self.token_bytes
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        held: Interval = seq.store
        if seq.computed + tokens > held.capacity:
            return False
        self._sum_filled += seq.computed + tokens - held.filled
        held.filled = seq.computed + tokens
        return True

    def join(self, seq: Sequence) -> None:
        self._sum_filled -= seq.store.filled
        self._sum_base += seq.base
        self._decoding += 1

    def leave(self, seq: Sequence) -> None:
        self._decoding -= 1
        self._sum_base -= seq.base
        seq.store.filled = seq.computed
        self._sum_filled += seq.computed

    def release(self, seq: Sequence, *, finished: bool) -> None:
        held = self._live.pop(seq)
        self._sum_filled -= held.filled
        self._will_fill -= min(held.capacity, seq.final)
        self.padding -= held.length - held.capacity * self.token_bytes
        self.space.give(held.start, held.length)
        seq.store = None

    def horizon(self, limit: int) -> int:
        return limit

    def advance(self, steps: int) -> None:
        self.step += steps

    def never_fits(self, seq: Sequence) -> bool:
        if seq.final > self.max_model_len:
            return True
        return self._room(seq, seq.final) > self._largest

    def _room(self, seq: Sequence, tokens: int) -> int:
        """Bytes that the interval of a sequence takes when it enters with `tokens`."""
        return self.space.rounded(self.capacity(seq, tokens) * self.token_bytes)

    def stats(self) -> MemoryStats:
        used = (self._sum_filled + self._sum_base + self._decoding * self.step) * self.token_bytes
        will_fill = self._will_fill * self.token_bytes
        free, hole = self.space.free, self.space.largest_hole
        return MemoryStats(
            pool=self.pool_bytes,
            used=used,
            reserved=will_fill - used,
            internal=self.pool_bytes - free - will_fill,
            cached=0,
            external=free - hole,
            free=hole,
            largest_free=hole,
        )

    def memory_map(self) -> list[tuple[int, int, int]]:
        """What lies where, in order of address: (first byte, byte after the last, row of the trace)."""
        return sorted((held.start, held.start + held.length, seq.row) for seq, held in self._live.items())

    def check(self) -> None:
        self.space.check()
        taken = self.memory_map()
        assert all(0 <= start < end <= self.pool_bytes for start, end, _ in taken), f"outside the pool: {taken}"
        assert all(a[1] <= b[0] for a, b in pairwise(taken)), f"two sequences overlap: {taken}"
        assert sum(end - start for start, end, _ in taken) + self.space.free == self.pool_bytes, "bytes leaked"
        assert sum(min(held.capacity, seq.final) for seq, held in self._live.items()) == self._will_fill
        assert sum(held.length - held.capacity * self.token_bytes for held in self._live.values()) == self.padding
        for seq, held in self._live.items():
            assert seq.store is held
            tokens = seq.base + self.step if seq.decoding else held.filled
            assert tokens <= held.capacity, f"{seq} holds {tokens} tokens in room for {held.capacity}"
        self.stats().check()
