"""Paged blocks under a retention policy: a sequence stops growing at its budget, and gives back what it drops.

When its prompt is done it is compacted to what the policy keeps (the copy is charged); while it decodes at its cap a
new token takes the slot of the one it evicts, so its blocks stay as they are.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kvsim.cache.base import Sequence
from kvsim.cache.paged import Paged
from kvsim.cache.retention import Retention


class Kept:
    """What one sequence holds."""

    __slots__ = ("blocks", "compacted", "tokens")

    def __init__(self, blocks: int, tokens: int) -> None:
        self.blocks = blocks
        self.tokens = tokens
        """stale while it decodes and grows"""
        self.compacted = False


class Retained(Paged):
    """`Paged` whose decoding sequences hold min(context − dropped, cap) tokens.

    Invariants as in Paged; a sequence counts as growing until the step on which it reaches its cap.
    """

    copies = True

    def __init__(
        self, *, blocks: int, block_size: int, token_bytes: int, retention: Retention, unusable: int = 0
    ) -> None:
        super().__init__(blocks=blocks, block_size=block_size, token_bytes=token_bytes, unusable=unusable)
        self._retention = retention
        self._cap = retention.cap
        self._growing: dict[Sequence, int] = {}
        """growing sequence → the step on which it reaches its cap"""
        self._saturating: list[tuple[int, int, Sequence]] = []
        self._full = 0
        """decoding sequences at their cap"""
        self._moved = 0

    @property
    def retention(self) -> Retention:
        return self._retention

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        need = -(-tokens // self.block_size)
        if self._retention.rolls:  # of a prompt it never holds more than its cap and the chunk that is being computed
            ensure = min(ensure, self._cap + tokens)
        if max(need, -(-ensure // self.block_size)) > self.free:
            return False
        seq.cached = seq.computed = seq.dropped = 0
        seq.store = Kept(0, 0)
        self._sequences.add(seq)
        self._hold(seq, tokens)
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        held: Kept = seq.store
        if held.compacted:
            upto = min(held.tokens + tokens, self._cap)
        elif self._retention.rolls:
            upto = min(held.tokens, self._cap) + tokens
        else:
            upto = held.tokens + tokens
        if -(-upto // self.block_size) - held.blocks > self.free:
            return False
        self._unhold(seq)
        self._hold(seq, upto)
        return True

    def _hold(self, seq: Sequence, tokens: int) -> None:
        held: Kept = seq.store
        blocks = -(-tokens // self.block_size)
        self.free -= blocks - held.blocks
        held.blocks, held.tokens = blocks, tokens
        self._prefill_tokens += tokens
        self._prefill_tail += self._waste(seq, blocks)

    def _unhold(self, seq: Sequence) -> None:
        """Take what a sequence holds out of the sums, not out of its hands."""
        held: Kept = seq.store
        self._prefill_tokens -= held.tokens
        self._prefill_tail -= self._waste(seq, held.blocks)

    def release(self, seq: Sequence, *, finished: bool) -> None:
        self._unhold(seq)
        self.free += seq.store.blocks
        self._sequences.remove(seq)
        seq.store = None

    def join(self, seq: Sequence) -> None:
        held: Kept = seq.store
        if not held.compacted:
            self._compact(seq, held)
        self._unhold(seq)
        base = seq.base - seq.dropped
        saturates = self._cap - base
        if saturates > self.step:
            self._growth.join(base)
            self._growing[seq] = saturates
            heappush(self._saturating, (saturates, seq.row, seq))
        else:
            self._full += 1
        waste, step = self._last_block(seq)
        if waste:
            self._add_tail(waste, step)

    def _compact(self, seq: Sequence, held: Kept) -> None:
        """The prompt is done: keep what the policy keeps, give the rest back."""
        self._unhold(seq)
        kept = self._retention.kept(seq.computed)
        if self._cap > kept:
            seq.dropped = seq.computed - kept
        if kept < held.tokens and not self._retention.rolls:
            self._moved += kept * self.token_bytes
        held.compacted = True
        self._hold(seq, min(kept, self._cap))

    def leave(self, seq: Sequence) -> None:
        waste, step = self._last_block(seq)
        if waste:
            self._drop_tail(waste, step)
        held: Kept = seq.store
        if self._growing.pop(seq, None) is not None:
            self._growth.leave(seq.base - seq.dropped)
        else:
            self._full -= 1
        held.tokens = min(seq.computed - seq.dropped, self._cap)
        held.blocks = -(-held.tokens // self.block_size)
        self._prefill_tokens += held.tokens
        self._prefill_tail += self._waste(seq, held.blocks)

    def horizon(self, limit: int) -> int:
        heap = self._saturating
        while heap and self._growing.get(heap[0][2]) != heap[0][0]:
            heappop(heap)
        if heap:
            limit = min(limit, heap[0][0] - self.step)
        return super().horizon(limit)

    def advance(self, steps: int) -> None:
        super().advance(steps)
        heap = self._saturating
        while heap and heap[0][0] <= self.step:
            saturates, _, seq = heappop(heap)
            if self._growing.get(seq) == saturates:
                del self._growing[seq]
                self._growth.leave(seq.base - seq.dropped)
                self._full += 1

    def take_moved_bytes(self) -> int:
        moved, self._moved = self._moved, 0
        return moved

    def never_fits(self, seq: Sequence) -> bool:
        # after a preemption it is computed again whole, answer included, before it is compacted
        most = min(seq.final, self._cap) if self._retention.rolls else seq.final
        return -(-most // self.block_size) > self.usable

    def whole(self, seq: Sequence) -> tuple[int, int]:
        kept = self._retention.kept(seq.prompt)
        dropped = seq.prompt - kept if self._cap > kept else 0
        return -(-max(seq.prompt, self._final(seq.final, dropped)) // self.block_size), self.usable

    def _final(self, tokens: int, dropped: int) -> int:
        return min(tokens - dropped, self._cap)

    def _used_tokens(self) -> int:
        return super()._used_tokens() + self._full * self._cap

    def _waste(self, seq: Sequence, blocks: int) -> int:
        held: Kept = seq.store
        most = max(held.tokens, self._final(seq.final, seq.dropped))
        return max(0, blocks * self.block_size - most)

    def _last_block(self, seq: Sequence) -> tuple[int, int]:
        final = self._final(seq.final, seq.dropped)
        full = (final - 1) // self.block_size * self.block_size
        return full + self.block_size - final, full + 1 - (seq.base - seq.dropped)

    def _blocks_of(self, seq: Sequence) -> int:
        if seq.decoding:
            return -(-min(seq.base - seq.dropped + self.step, self._cap) // self.block_size)
        held: Kept = seq.store
        return held.blocks

    def check(self) -> None:
        blocks = tokens = tail = 0
        for seq in self._sequences:
            if seq.decoding:
                held = min(seq.base - seq.dropped + self.step, self._cap)
                mine = -(-held // self.block_size)
                tail += max(0, mine * self.block_size - self._final(seq.final, seq.dropped))
            else:
                held, mine = seq.store.tokens, seq.store.blocks
                tail += self._waste(seq, mine)
            blocks += mine
            tokens += held
        assert blocks + self.free == self.usable, (blocks, self.free, self.usable)
        assert tokens == self._used_tokens(), (tokens, self._used_tokens())
        self._settle()
        assert tail == self._tail + self._prefill_tail, (tail, self._tail, self._prefill_tail)
        self.stats().check()
