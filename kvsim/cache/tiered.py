"""A host tier behind a paged cache: idle prefix blocks that are evicted, and preempted sequences, go to host memory.

What goes out and comes in is put on a list of transfers; the engine moves them over a link (a SimPy resource) one after
the other, and a sequence whose tokens are on their way computes nothing until they have arrived. Device blocks are free
as soon as their copy is queued: the copy engine reads them before the step that reuses them writes (vLLM orders both on
one stream). The link is first in, first out, so nothing is read back before it was written.
"""

from __future__ import annotations

from kvsim.cache.base import Allocator, MemoryStats, Sequence, Transfer
from kvsim.cache.host_blocks import HostBlocks
from kvsim.cache.paged import Paged
from kvsim.cache.prefix import PrefixPaged
from kvsim.cache.retention import Retention
from kvsim.cache.tier import Tier


class Tiered(Allocator):
    """`inner` with `tier` behind it.

    Invariants: host bytes = bytes of swapped sequences + bytes of prefix blocks ≤ tier.bytes;
    bytes out = bytes in + bytes dropped + bytes still out (a prefix block that is read back stays in host memory too,
    so it comes in without leaving: it is counted under `copied_in`).
    """

    def __init__(self, inner: Paged, tier: Tier, *, swap: bool, keep: bool = True) -> None:
        """`swap`: whether preempted sequences go out; `keep`: whether evicted prefix blocks do."""
        self.inner = inner
        self.tier = tier
        self.swap = swap
        self.pool_bytes = inner.pool_bytes
        self.block_bytes = inner.block_bytes
        self.copies = inner.copies
        self.returns_while_decoding = inner.returns_while_decoding
        self._transfers: list[Transfer] = []
        self.out_bytes = 0
        self.in_bytes = 0
        """of swapped sequences: they leave host memory"""
        self.copied_in_bytes = 0
        """of prefix blocks: they stay"""
        self.dropped_bytes = 0
        self._swapped: dict[Sequence, int] = {}
        """swapped sequence → its tokens"""
        self._blocks = HostBlocks()
        self._swapped_bytes = 0
        if keep and isinstance(inner, PrefixPaged):
            inner.pool.evicted = self._evicted

    @property
    def retention(self) -> Retention:
        return self.inner.retention

    @property
    def free(self) -> int:
        return self.inner.free

    @property
    def evicted_blocks(self) -> int:
        return getattr(self.inner, "evicted_blocks", 0)

    def host_bytes(self) -> int:
        return self._swapped_bytes + self._blocks.count * self.block_bytes

    # -- going out --------------------------------------------------------------------------------------------------

    def _evicted(self, id: int, first: int, last: int) -> None:
        """Blocks [first, last) of a content leave the device: they go out unless they are out already."""
        new = self._blocks.use(id, first, last)
        if new:
            self._send(new * self.block_bytes)
            self._make_room(0)

    def _send(self, size: int) -> None:
        self.out_bytes += size
        self._transfers.append(Transfer(size))

    def _make_room(self, size: int) -> bool:
        """Drop the prefix blocks unused for longest until `size` more fit."""
        over = self.host_bytes() + size - self.tier.bytes
        if over <= 0:
            return True
        drop = min(self._blocks.count, -(-over // self.block_bytes))
        self._blocks.drop(drop)
        self.dropped_bytes += drop * self.block_bytes
        return over <= drop * self.block_bytes

    def preempting(self, seq: Sequence, tokens: int) -> None:
        size = self._held(tokens)
        if self.swap and tokens and self._make_room(size):
            self._swapped[seq] = tokens
            self._swapped_bytes += size
            self._send(size)

    def _held(self, tokens: int) -> int:
        return -(-tokens // self.inner.block_size) * self.block_bytes

    def receive(self, seq: Sequence, tokens: int) -> None:
        """`tokens` of `seq` were computed elsewhere and wait at the other end of the link (it is no host memory, and
        has room)."""
        self._swapped[seq] = tokens
        self._swapped_bytes += self._held(tokens)

    # -- coming in --------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> int:
        return self.inner.match(seq) + self.loads(seq)

    def loads(self, seq: Sequence) -> int:
        found = self.inner.match(seq)
        if seq in self._swapped:
            return max(0, self._swapped[seq] - found)
        return self._in_host(seq, found // self.inner.block_size) * self.inner.block_size

    def _in_host(self, seq: Sequence, begin: int) -> int:
        """How many blocks of `seq` from `begin` on host memory holds without a gap."""
        inner = self.inner
        if not self._blocks.count or not isinstance(inner, PrefixPaged):
            return 0
        at, limit = begin, (seq.tokens - 1) // inner.block_size
        for id, first, count in inner.content(seq):
            end = min(first + count, limit)
            if first <= at < end:
                at = self._blocks.reach(id, at, end)
            if at < end or at >= limit:
                break
        return at - begin

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        load = self.loads(seq)
        found = self.inner.match(seq)
        begin = found // self.inner.block_size
        end = -(-(found + load) // self.inner.block_size)
        if load and seq not in self._swapped:
            self._touch(seq, begin, end)  # first, so that what admission evicts does not push them out
        if load:
            ensure = max(ensure, seq.tokens)  # or it might give way when they have come, and load them again, for ever
        if not self.inner.admit(seq, load + tokens, ensure):
            return False
        if seq in self._swapped:
            size = self._held(self._swapped.pop(seq))
            self._swapped_bytes -= size
            self.in_bytes += size
        elif load:
            self.copied_in_bytes += (end - begin) * self.block_bytes
        if load:
            seq.computed += load
            seq.cached = seq.computed
            self._transfers.append(Transfer((end - begin) * self.block_bytes, seq))
        return True

    def _touch(self, seq: Sequence, begin: int, end: int) -> None:
        """Blocks [begin, end) of `seq` were wanted: they stay in host memory longest."""
        assert isinstance(self.inner, PrefixPaged)
        for id, first, count in self.inner.content(seq):
            if first + count > begin:
                self._blocks.use(id, max(first, begin), min(first + count, end))
            if first + count >= end:
                return

    def take_transfers(self) -> list[Transfer]:
        transfers, self._transfers = self._transfers, []
        return transfers

    # -- the rest is the inner cache's ------------------------------------------------------------------------------

    def fork(self, seq: Sequence, child: Sequence) -> bool:
        return self.inner.fork(seq, child)

    def release(self, seq: Sequence, *, finished: bool) -> None:
        self.inner.release(seq, finished=finished)

    def grow(self, seq: Sequence, tokens: int) -> bool:
        return self.inner.grow(seq, tokens)

    def join(self, seq: Sequence) -> None:
        self.inner.join(seq)

    def leave(self, seq: Sequence) -> None:
        self.inner.leave(seq)

    def horizon(self, limit: int) -> int:
        return self.inner.horizon(limit)

    def advance(self, steps: int) -> None:
        self.inner.advance(steps)
        self.step = self.inner.step

    def never_fits(self, seq: Sequence) -> bool:
        return self.inner.never_fits(seq)

    def whole(self, seq: Sequence) -> tuple[int, int]:
        return self.inner.whole(seq)

    def take_moved_bytes(self) -> int:
        return self.inner.take_moved_bytes()

    def stats(self) -> MemoryStats:
        return self.inner.stats()

    def memory_map(self) -> list[tuple[int, int, int]]:
        return self.inner.memory_map()

    def check(self) -> None:
        self.inner.check()
        self._blocks.check()
        assert self._swapped_bytes == sum(self._held(tokens) for tokens in self._swapped.values())
        assert self.host_bytes() <= self.tier.bytes
        assert self.out_bytes == self.in_bytes + self.dropped_bytes + self.host_bytes()
