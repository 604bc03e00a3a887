"""Paged blocks for models that mix full and sliding-window layers: one pool, one table a group of layers (vLLM V1).

Layers are grouped by how far they attend, padded so that every group's block has the same bytes; a block holds
`block_size` tokens of one group. With c tokens computed before a step and k scheduled in it, a full group holds
ceil((c + k) / b) blocks and a group of window W holds ceil((c + k) / b) − floor(max(0, c − W + 1) / b): blocks that the
window has left are given back when the sequence is scheduled next, before new ones are taken.

A prefix hit of length L needs all blocks of full groups and the last ceil((W − 1) / b) before L of window groups (fewer
only where they begin at block 0).
"""

from __future__ import annotations

from heapq import heappop, heappush

from kvsim.cache.base import Allocator, MemoryStats, Sequence
from kvsim.cache.block_pool import Block, BlockPool
from kvsim.cache.growth import Growth


class Tables:
    """What one sequence holds: for each group its blocks from `skipped[group]` on; the first `findable` are full."""

    __slots__ = ("blocks", "findable", "skipped", "upto")

    def __init__(self, groups: int) -> None:
        self.blocks: list[list[Block]] = [[] for _ in range(groups)]
        self.skipped = [0] * groups
        self.findable = 0
        self.upto = 0
        """tokens there is room for, or being computed"""


class Hybrid(Allocator):
    """`windows`: tokens a group attends (0: all); `token_bytes`: of one token in one group; `batch_tokens`: most tokens
    a step computes, which bounds what a window group can hold at once.
    """

    returns_while_decoding = True

    def __init__(
        self, *, blocks: int, block_size: int, token_bytes: int, windows: tuple[int, ...], prefix: bool = True,
        unusable: int = 0, batch_tokens: int = 1 << 40, max_model_len: int = 1 << 40,
    ) -> None:
        self.block_size = block_size
        self.token_bytes = token_bytes
        self.block_bytes = block_size * token_bytes
        self.blocks = blocks
        self.usable = blocks - unusable
        self.pool_bytes = blocks * self.block_bytes
        self.windows = windows
        self.prefix = prefix
        self.pool = BlockPool(self.usable)
        self._most = tuple(-(-min(w - 1 + batch_tokens, max_model_len) // block_size) + 1 if w else 1 << 60
                           for w in windows)
        """most blocks of a group that admission asks for"""
        self._run = tuple(-(-(w - 1) // block_size) if w else 0 for w in windows)
        """blocks before a hit's end that a window group needs (one token's needs none, and is refused by the caller)"""
        self._sequences: set[Sequence] = set()
        self._decoding: dict[Sequence, int] = {}
        """decoding sequence → its valid entry in the heap of events"""
        self._events: list[tuple[int, int, int, Sequence]] = []
        """(step, admission, entry, sequence): blocks to take or leave on that step"""
        self._entry = 0
        self._growth = Growth(block_size)
        """of decoding sequences, in one group"""
        self._prefill_tokens = 0
        self._skipped_blocks = 0
        self._tail = 0
        """slots behind the final token in last blocks, of one group"""

    @property
    def free(self) -> int:
        return self.pool.free

    @property
    def evicted_blocks(self) -> int:
        return self.pool.evicted

    # -- finding ----------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> int:
        return self._hit(seq) * self.block_size

    def _ids(self, seq: Sequence, count: int) -> list[int]:
        """Content ids of the first `count` blocks; what has no id is private."""
        ids: list[int] = []
        for id, _, blocks in seq.chain or ():
            ids += [id] * blocks
            if len(ids) >= count:
                return ids[:count]
        return ids + [-2 - seq.row] * (count - len(ids))

    def _hit(self, seq: Sequence) -> int:
        """Blocks at the beginning of `seq` that all groups can serve."""
        return self.pool.hit(self._ids(seq, (seq.tokens - 1) // self.block_size), self._run) if self.prefix else 0

    # -- taking and giving back -------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        size = self.block_size
        hit = self._hit(seq)
        ids = self._ids(seq, hit)
        tables = Tables(len(self.windows))
        idle = 0
        found: list[list[Block]] = []
        for group, run in enumerate(self._run):
            first = max(0, hit - run) if run else 0
            tables.skipped[group] = first
            found.append([self.pool.find((group, ids[at], at)) for at in range(first, hit)])
            idle += sum(block.ref == 0 for block in found[group])
        upto = -(-(hit * size + tokens) // size)
        need = len(self.windows) * (upto - hit)
        whole = -(-ensure // size)  # vLLM counts a hit's blocks that a window does not need as if they were held
        needed = sum(max(0, min(whole, most) - hit) for most in self._most)
        if max(need, needed) + idle > self.free:
            return False
        for group, blocks in enumerate(found):
            for block in blocks:
                self.pool.share(block)
            tables.blocks[group] = blocks
        tables.findable = hit
        seq.cached = seq.computed = hit * size
        seq.store = tables
        self._sequences.add(seq)
        self._skipped_blocks += sum(tables.skipped)
        self._prefill_tokens += seq.computed
        tables.upto = seq.computed
        self._fill(seq, tables, seq.computed + tokens)
        self._prefill_tokens += tokens
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        tables: Tables = seq.store
        self._leave_behind(tables, seq.computed)
        if not self._fill(seq, tables, seq.computed + tokens):
            return False
        self._prefill_tokens += tokens
        return True

    def _leave_behind(self, tables: Tables, computed: int) -> None:
        """Give back the blocks that no window reaches any more from token `computed` on."""
        for group, window in enumerate(self.windows):
            if not window:
                continue
            skipped = max(0, computed - window + 1) // self.block_size
            drop = skipped - tables.skipped[group]
            if drop > 0:
                blocks = tables.blocks[group]
                self.pool.give(reversed(blocks[:drop]))
                del blocks[:drop]
                tables.skipped[group] = skipped
                self._skipped_blocks += drop

    def _fill(self, seq: Sequence, tables: Tables, upto: int) -> bool:
        """Blocks for tokens up to `upto` in every group; those that become full are findable at once."""
        need = -(-upto // self.block_size) - -(-tables.upto // self.block_size)
        if need * len(self.windows) > self.free:
            return False
        self._tail -= self._waste(seq, tables.upto)
        tables.upto = upto
        self._tail += self._waste(seq, upto)
        for blocks in tables.blocks:
            blocks.extend(self.pool.take() for _ in range(need))
        self._publish(seq, tables, upto // self.block_size)
        return True

    def _publish(self, seq: Sequence, tables: Tables, full: int) -> None:
        if not self.prefix or full <= tables.findable:
            return
        ids = self._ids(seq, full)
        for group, blocks in enumerate(tables.blocks):
            skipped = tables.skipped[group]
            for at in range(max(tables.findable, skipped), full):
                self.pool.publish(blocks[at - skipped], (group, ids[at], at))
        tables.findable = full

    def release(self, seq: Sequence, *, finished: bool) -> None:
        tables: Tables = seq.store
        self._tail -= self._waste(seq, tables.upto)
        self._prefill_tokens -= seq.computed
        self._skipped_blocks -= sum(tables.skipped)
        for blocks in tables.blocks:
            self.pool.give(reversed(blocks))
        self._sequences.remove(seq)
        seq.store = None

    def never_fits(self, seq: Sequence) -> bool:
        return self.whole(seq)[0] > self.usable

    def whole(self, seq: Sequence) -> tuple[int, int]:
        """Its most blocks at once: what admission asks for its prompt, or what it holds while it decodes. Every window
        holds as much again after each `block_size` tokens and full groups hold ever more, so the last ones tell."""
        size = self.block_size
        admission = sum(min(-(-seq.prompt // size), most) for most in self._most)
        last = range(max(seq.prompt, seq.final - size), seq.final)
        return max([admission, *map(self._decoding_blocks, last)]), self.usable

    def _decoding_blocks(self, computed: int) -> int:
        """Blocks of a sequence in the step that adds one token to `computed`."""
        size = self.block_size
        left = sum(max(0, computed - window + 1) // size for window in self.windows if window)
        return len(self.windows) * -(-(computed + 1) // size) - left

    # -- decoding ---------------------------------------------------------------------------------------------------

    def join(self, seq: Sequence) -> None:
        self._prefill_tokens -= seq.computed
        self._growth.join(seq.base)
        self._expect(seq)

    def leave(self, seq: Sequence) -> None:
        del self._decoding[seq]
        self._prefill_tokens += seq.computed
        self._growth.leave(seq.base)
        tables: Tables = seq.store
        self._settle(seq, tables, seq.computed)

    def _settle(self, seq: Sequence, tables: Tables, upto: int) -> None:
        """Tokens up to `upto` are there, in blocks that are there already."""
        self._tail -= self._waste(seq, tables.upto)
        tables.upto = upto
        self._tail += self._waste(seq, upto)
        self._publish(seq, tables, upto // self.block_size)

    def _expect(self, seq: Sequence) -> None:
        """Note the next step on which `seq` takes a block or its windows leave one."""
        size, computed = self.block_size, seq.base + self.step
        wait = -computed % size
        for group, window in enumerate(self.windows):
            if window:  # block number `skipped` is out of reach from this many tokens on
                leaves = (seq.store.skipped[group] + 1) * size + window - 1
                wait = min(wait, max(0, leaves - computed))
        self._entry += 1
        self._decoding[seq] = self._entry
        heappush(self._events, (self.step + wait, seq.admitted, self._entry, seq))

    def horizon(self, limit: int) -> int:
        # a block in every group at a time; what windows leave in these steps is not counted against it
        return self._growth.horizon(self.step, self.pool.free // len(self.windows), limit)

    def advance(self, steps: int) -> None:
        last = self.step + steps
        while self._events and self._events[0][0] < last:
            step, _, entry, seq = heappop(self._events)
            if self._decoding.get(seq) != entry:
                continue
            self.step = step
            tables: Tables = seq.store
            computed = seq.base + step
            self._settle(seq, tables, computed)
            self._leave_behind(tables, computed)
            filled = self._fill(seq, tables, computed + 1)
            assert filled, f"{seq} advances beyond the horizon"
            self.step = step + 1
            self._expect(seq)
        self.step = last

    # -- what it looks like -----------------------------------------------------------------------------------------

    def held(self, seq: Sequence) -> list[int]:
        """Blocks that `seq` holds in each group."""
        return [len(blocks) for blocks in seq.store.blocks]

    def _waste(self, seq: Sequence, tokens: int) -> int:
        return max(0, -(-tokens // self.block_size) * self.block_size - seq.final)

    def stats(self) -> MemoryStats:
        groups, size = len(self.windows), self.block_size
        tokens = self._prefill_tokens + self._growth.tokens(self.step)
        used = (groups * tokens - (self._skipped_blocks + self.pool.saved) * size) * self.token_bytes
        unusable = (self.blocks - self.usable) * self.block_bytes
        internal = groups * self._tail * self.token_bytes
        allocated = (self.usable - self.free) * self.block_bytes
        cached = (self.free - self.pool.plain) * self.block_bytes
        free = self.free * self.block_bytes
        return MemoryStats(
            pool=self.pool_bytes, used=used, reserved=allocated - used - internal, internal=internal + unusable,
            cached=cached, external=0, free=free - cached,
            shared_saved=self.pool.saved * self.block_bytes, largest_free=free,
        )

    def memory_map(self) -> list[tuple[int, int, int]]:
        at, found = 0, []
        for seq in sorted(self._sequences, key=lambda seq: seq.admitted):
            end = at + sum(self.held(seq)) * self.block_bytes
            found.append((at, end, seq.row))
            at = end
        return found

    def check(self) -> None:
        references: dict[Block, int] = {}
        for seq in self._sequences:
            for blocks in seq.store.blocks:
                for block in blocks:
                    references[block] = references.get(block, 0) + 1
        self.pool.check(references)
        self.stats().check()
