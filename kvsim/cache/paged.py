"""Paged layout: fixed blocks of tokens, taken one by one as a sequence grows (PagedAttention, Kwon et al. 2023).

External waste is zero and internal waste is less than a block a sequence. Demand is counted, not walked: a decoding
sequence needs a block on the steps where its length is a multiple of the block size, so one counter a residue class
of `base` tells how many blocks the next k steps take.
"""

from __future__ import annotations

from kvsim.cache.base import Allocator, MemoryStats, Sequence


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
        self._residue = [0] * block_size
        self._decoding = 0
        self._sum_base = 0
        self._prefill_tokens = 0
        """tokens of sequences that are not decoding"""
        self._prefill_tail = 0
        self._tail = 0
        """slots that decoding sequences hold behind their final length: internal waste"""
        self._tail_at: dict[int, int] = {}
        """step → internal waste that appears then, as sequences take their last block"""
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
        self._prefill_tail += self._waste(seq, need)
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
        self._prefill_tail -= self._waste(seq, seq.store)
        self._sequences.remove(seq)
        seq.store = None

    def never_fits(self, seq: Sequence) -> bool:
        return -(-seq.final // self.block_size) > self.usable

    def whole(self, seq: Sequence) -> tuple[int, int]:
        return -(-seq.final // self.block_size), self.usable

    # -- decoding ---------------------------------------------------------------------------------------------------

    def join(self, seq: Sequence) -> None:
        self._prefill_tokens -= seq.computed
        self._prefill_tail -= self._waste(seq, seq.store)
        self._decoding += 1
        self._sum_base += seq.base
        self._residue[seq.base % self.block_size] += 1
        waste, step = self._last_block(seq)
        if step <= self.step:
            self._tail += waste
        elif waste:
            self._tail_at[step] = self._tail_at.get(step, 0) + waste

    def leave(self, seq: Sequence) -> None:
        self._decoding -= 1
        self._sum_base -= seq.base
        self._residue[seq.base % self.block_size] -= 1
        waste, step = self._last_block(seq)
        if step <= self.step:
            self._tail -= waste
        elif waste:
            self._tail_at[step] -= waste
        seq.store = -(-(seq.base + self.step) // self.block_size)
        self._prefill_tokens += seq.computed
        self._prefill_tail += self._waste(seq, seq.store)

    def demand(self, steps: int) -> int:
        """Blocks that the next `steps` steps take: a sequence takes one where its length is block-aligned."""
        size, residue = self.block_size, self._residue
        whole, rest = divmod(steps, size)
        blocks = whole * self._decoding
        at = -self.step
        for _ in range(rest):
            blocks += residue[at % size]
            at -= 1
        return blocks

    def horizon(self, limit: int) -> int:
        if self._decoding * (limit // self.block_size + 1) <= self.free or self.demand(limit) <= self.free:
            return limit
        low, high = 0, limit  # demand grows with the steps: demand(low) fits, demand(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            if self.demand(middle) <= self.free:
                low = middle
            else:
                high = middle
        return low

    def advance(self, steps: int) -> None:
        self._take(self.demand(steps))
        tail_at = self._tail_at
        if tail_at:
            for step in range(self.step + 1, self.step + steps + 1):
                if step in tail_at:
                    self._tail += tail_at.pop(step)
        self.step += steps

    def _take(self, blocks: int) -> None:
        self.free -= blocks

    # -- what it looks like -----------------------------------------------------------------------------------------

    def stats(self) -> MemoryStats:
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
        assert tail == self._tail + self._prefill_tail, (tail, self._tail, self._prefill_tail)
        assert tokens == self._prefill_tokens + self._sum_base + self._decoding * self.step
        self.stats().check()

    def _used_tokens(self) -> int:
        return self._prefill_tokens + self._sum_base + self._decoding * self.step

    def plain_free(self) -> int:
        """Free blocks that hold nothing findable."""
        return self.free

    def _shared_tokens(self) -> int:
        return 0

    def _waste(self, seq: Sequence, blocks: int) -> int:
        """Slots in `blocks` blocks that `seq` will never fill."""
        return max(0, blocks * self.block_size - seq.final)

    def _last_block(self, seq: Sequence) -> tuple[int, int]:
        """Slots wasted behind its final token, and the step by which a decoding `seq` holds its last block."""
        full = (seq.final - 1) // self.block_size * self.block_size
        return full + self.block_size - seq.final, full + 1 - seq.base
