"""Paged layout: fixed blocks of tokens, taken one by one as a sequence grows (PagedAttention, Kwon et al. 2023).

External waste is zero and internal waste is less than a block a sequence. What decoding sequences take is counted, not
walked (growth.py).
"""

from __future__ import annotations

from heapq import heappop, heappush

from mypy_extensions import mypyc_attr

from kvsim.cache.base import Allocator, MemoryStats, Sequence
from kvsim.cache.growth import Growth


@mypyc_attr(allow_interpreted_subclasses=True)
class Paged(Allocator):
    """A pool of `blocks` blocks of `block_size` tokens, `token_bytes` bytes a token, `unusable` of them never given out
    (vLLM keeps one null block).

    Invariants: free + held blocks = usable blocks; a decoding sequence holds ceil((base + step) / block_size) blocks.
    """

    def __init__(self, *, blocks: int, block_size: int, token_bytes: int, unusable: int = 0) -> None:
        self.block_size = block_size
        self.block_bytes = block_size * token_bytes
        self.token_bytes = token_bytes
        self.blocks = blocks
        self.usable = blocks - unusable
        self.pool_bytes = blocks * self.block_bytes
        self.free = self.usable
        """blocks that can be taken, idle prefix blocks included"""
        self._growth = Growth(block_size)
        """of decoding sequences"""
        self._prefill_tokens = 0
        """tokens of sequences that are not decoding"""
        self._prefill_tail = 0
        self._tail = 0
        """slots that decoding sequences hold behind their final length: internal waste"""
        self._tail_at: dict[int, int] = {}
        """step → internal waste that appears then, as sequences take their last block"""
        self._tail_steps: list[int] = []
        """its keys, a heap"""
        self._sequences: set[Sequence] = set()

    # -- taking and giving back ------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        need = -(-tokens // self.block_size)
        if max(need, -(-ensure // self.block_size)) > self.free:
            return False
        self.free -= need
        seq.cached = seq.computed = 0
        seq.store = need
        self._sequences.add(seq)
        self._prefill_tokens += tokens
        waste = need * self.block_size - seq.final
        if waste > 0:
            self._prefill_tail += waste
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        held = seq.store
        need = -(-(seq.computed + tokens) // self.block_size)
        if need - held > self.free:
            return False
        self.free -= need - held
        seq.store = need
        self._prefill_tokens += tokens
        self._prefill_tail += self._waste(seq, need) - self._waste(seq, held)
        return True

    def release(self, seq: Sequence, *, finished: bool) -> None:
        self.free += seq.store
        self._prefill_tokens -= seq.computed
        waste = seq.store * self.block_size - seq.final
        if waste > 0:
            self._prefill_tail -= waste
        self._sequences.remove(seq)
        seq.store = None

    def never_fits(self, seq: Sequence) -> bool:
        return -(-seq.final // self.block_size) > self.usable

    def whole(self, seq: Sequence) -> tuple[int, int]:
        return -(-seq.final // self.block_size), self.usable

    # -- decoding ---------------------------------------------------------------------------------------------------

    def join(self, seq: Sequence) -> None:
        base, size, final = seq.base, self.block_size, seq.final
        self._prefill_tokens -= seq.computed
        self._growth.join(base)
        waste = -final % size
        if waste:
            if seq.store * size > final:
                self._prefill_tail -= waste
            self._add_tail(waste, final + waste - size + 1 - base)

    def leave(self, seq: Sequence) -> None:
        base, size, final = seq.base, self.block_size, seq.final
        self._growth.leave(base)
        seq.store = -(-(base + self.step) // size)
        self._prefill_tokens += seq.computed
        waste = -final % size
        if waste:
            if seq.store * size > final:
                self._prefill_tail += waste
            self._drop_tail(waste, final + waste - size + 1 - base)

    def horizon(self, limit: int) -> int:
        return self._growth.horizon(self.step, self.free, limit)

    def advance(self, steps: int) -> None:
        blocks = self._growth.blocks(self.step, steps)
        if blocks:
            self._take(blocks)
        self.step += steps

    def _add_tail(self, waste: int, step: int) -> None:
        """A decoding sequence wastes `waste` slots from `step` on, when it takes its last block."""
        if step <= self.step:
            self._tail += waste
        elif step in self._tail_at:
            self._tail_at[step] += waste
        else:
            self._tail_at[step] = waste
            heappush(self._tail_steps, step)

    def _drop_tail(self, waste: int, step: int) -> None:
        if step in self._tail_at:
            self._tail_at[step] -= waste
        else:
            self._tail -= waste

    def _settle(self) -> None:
        """Count the waste that has appeared by now. Nobody asks between two samples."""
        while self._tail_steps and self._tail_steps[0] <= self.step:
            self._tail += self._tail_at.pop(heappop(self._tail_steps))

    def _take(self, blocks: int) -> None:
        self.free -= blocks

    # -- what it looks like -----------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
        self._settle()
        token_bytes = self.token_bytes
        used = self._used_tokens() * token_bytes
        unusable = (self.blocks - self.usable) * self.block_bytes
        internal = (self._tail + self._prefill_tail) * token_bytes
        allocated = (self.usable - self.free) * self.block_bytes
        cached = (self.free - self.plain_free()) * self.block_bytes
        free = self.free * self.block_bytes
        return MemoryStats(
            pool=self.pool_bytes, used=used, reserved=allocated - used - internal, internal=internal + unusable,
            cached=cached, external=0, free=free - cached, shared_saved=self._shared_tokens() * token_bytes,
            largest_free=free,
        )

    def memory_map(self) -> list[tuple[int, int, int]]:
        at, found = 0, []
        for seq in sorted(self._sequences, key=lambda seq: seq.admitted):
            end = at + self._blocks_of(seq) * self.block_bytes
            found.append((at, end, seq.row))
            at = end
        return found

    def _blocks_of(self, seq: Sequence) -> int:
        """Blocks that `seq` holds, shared ones included."""
        held: int = -(-(seq.base + self.step) // self.block_size) if seq.decoding else seq.store
        return held

    def check(self) -> None:
        held = 0
        tokens = tail = 0
        for seq in self._sequences:
            computed = seq.base + self.step if seq.decoding else seq.computed
            blocks = -(-computed // self.block_size) if seq.decoding else seq.store
            held += blocks
            tokens += computed
            tail += self._waste(seq, blocks)
        assert held + self.free == self.usable, f"{held} held + {self.free} free ≠ {self.usable}"
        self._settle()
        assert tail == self._tail + self._prefill_tail, (tail, self._tail, self._prefill_tail)
        assert tokens == self._used_tokens(), (tokens, self._used_tokens())
        self.stats().check()

    def _used_tokens(self) -> int:
        return self._prefill_tokens + self._growth.tokens(self.step)

    def plain_free(self) -> int:
        """Free blocks that hold nothing findable."""
        return self.free

    def _shared_tokens(self) -> int:
        return 0

    def _waste(self, seq: Sequence, blocks: int) -> int:
        """Slots in `blocks` blocks that `seq` will never fill."""
        return max(0, blocks * self.block_size - seq.final)
