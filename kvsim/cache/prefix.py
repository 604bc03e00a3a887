"""Hash prefix cache over paged blocks, as in vLLM: full blocks stay findable by content until they are taken.

Rules (vLLM V1, kv_cache_manager.py, learned from recordings of its scheduler; those of the blocks are in run_pool.py):
* A finished or preempted sequence gives its blocks back last block first, so that the ends of prefixes go before their
  beginnings.
* A hit never covers the whole input: at least one token is computed. Full blocks only.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import mypyc_attr

from kvsim.cache.base import Sequence
from kvsim.cache.paged import Paged
from kvsim.cache.run_pool import Run, RunPool

Part = tuple[int, int, int]
"""(content id, first block, blocks): a stretch of a sequence's full blocks; ids are chained, so equal ids at the same
place mean equal prefixes"""

ENDLESS = 1 << 60


class Held:
    """What one sequence holds: findable blocks as (run, end) pairs, then `plain` blocks that are not full yet."""

    __slots__ = ("findable", "parts", "plain")

    def __init__(self) -> None:
        self.parts: list[tuple[Run, int]] = []
        self.findable = 0
        self.plain = 0

    def runs(self) -> Iterator[Run]:
        for run, end in self.parts:
            at: Run | None = run
            while at is not None:
                yield at
                at = at.tail if at.hi < end else None


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixPaged(Paged):
    """Paged blocks with a hash prefix cache and least-recently-used replacement."""

    def __init__(
        self, *, blocks: int, block_size: int, token_bytes: int, unusable: int = 0, reuse: bool = True,
        forks: bool = False, pool: RunPool | None = None,
    ) -> None:
        """`reuse`: whether blocks stay findable when nobody holds them, and are found at all; without it blocks are
        shared by forks only. `forks`: whether there will be any. `pool`: of the usable blocks, where they are to be
        replaced in another order."""
        super().__init__(blocks=blocks, block_size=block_size, token_bytes=token_bytes, unusable=unusable)
        self.reuse = reuse
        self.copies = forks
        self.pool = pool or RunPool(self.usable)
        self._moved = 0
        self._saved_blocks = 0
        """blocks that would be held more if nothing were shared"""
        self._match: tuple[Sequence, list[tuple[Run, int, int]]] | None = None

    @property
    def evicted_blocks(self) -> int:
        return self.pool.evicted_blocks

    # -- finding ----------------------------------------------------------------------------------------------------

    def match(self, seq: Sequence) -> int:
        if self._match is None or self._match[0] is not seq:
            self._match = (seq, self._find(seq))
        found = self._match[1]
        return (found[-1][2] if found else 0) * self.block_size

    def _find(self, seq: Sequence) -> list[tuple[Run, int, int]]:
        """The findable beginning of `seq` as (run, from block, to block), in order."""
        limit = (seq.tokens - 1) // self.block_size if self.reuse else 0
        found: list[tuple[Run, int, int]] = []
        at = 0
        for id, first, count in self.content(seq):
            end = min(first + count, limit)
            while at < end:
                run = self.pool.find(id, at)
                if run is None:
                    return found
                stop = min(run.hi, end)
                found.append((run, at, stop))
                at = stop
            if at >= limit:
                break
        return found

    def content(self, seq: Sequence) -> Iterator[Part]:
        """Content ids of all blocks of `seq`; what has no id is private to it."""
        at = 0
        for part in seq.chain or ():
            yield part
            at = part[1] + part[2]
        yield -2 - seq.row, at, ENDLESS

    # -- taking and giving back -------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        size = self.block_size
        if self._match is not None and self._match[0] is seq:
            found = self._match[1]
        else:
            found = self._find(seq)
        hit = found[-1][2] if found else 0
        idle = sum(stop - start for run, start, stop in found if run.ref == 0)
        need = -(-(hit * size + tokens) // size) - hit
        if max(need, -(-ensure // size) - hit) + idle > self.free:
            return False
        self._match = None
        held = Held()
        for run, start, stop in found:
            piece = self.pool.piece(run, start, stop)
            if piece.ref == 0:
                self.pool.remove(piece)
                self.free -= stop - start
            else:
                self._saved_blocks += stop - start
            piece.ref += 1
            held.parts.append((piece, stop))
        held.findable = hit
        seq.cached = seq.computed = hit * size
        seq.store = held
        self._sequences.add(seq)
        self._prefill_tokens += seq.computed
        self._extend(seq, held, tokens)
        return True

    def grow(self, seq: Sequence, tokens: int) -> bool:
        held: Held = seq.store
        need = -(-(seq.computed + tokens) // self.block_size) - held.findable - held.plain
        if need > self.free:
            return False
        self._match = None
        self._prefill_tail -= self._waste(seq, held.findable + held.plain)
        self._extend(seq, held, tokens)
        return True

    def _extend(self, seq: Sequence, held: Held, tokens: int) -> None:
        """Blocks for `tokens` more (they fit); those that become full are findable at once."""
        upto = seq.computed + tokens
        need = -(-upto // self.block_size) - held.findable - held.plain
        self._take(need)
        held.plain += need
        self._publish(seq, held, upto // self.block_size)
        self._prefill_tokens += tokens
        self._prefill_tail += self._waste(seq, held.findable + held.plain)

    def release(self, seq: Sequence, *, finished: bool) -> None:
        self._match = None
        held: Held = seq.store
        self._prefill_tokens -= seq.computed
        self._prefill_tail -= self._waste(seq, held.findable + held.plain)
        self.free += held.plain
        self.pool.give(held.plain)
        for run in reversed(list(held.runs())):
            run.ref -= 1
            if run.ref:
                self._saved_blocks -= run.hi - run.lo
                continue
            self.free += run.hi - run.lo
            if self.reuse:
                self.pool.append(run)
            else:
                self.pool.forget(run)
                self.pool.give(run.hi - run.lo)
        self._sequences.remove(seq)
        seq.store = None

    def fork(self, seq: Sequence, child: Sequence) -> bool:
        """Share every full block. The partly filled last one is copied at once: the next step writes to it (copy on
        write, with one copy fewer than sequences, since the last that holds it may write it in place)."""
        tail = seq.computed % self.block_size
        if tail and not self.free:
            return False
        held, mine = seq.store, Held()
        mine.parts, mine.findable = list(held.parts), held.findable
        for run in held.runs():
            run.ref += 1
            self._saved_blocks += run.hi - run.lo
        child.store = mine
        child.computed = seq.computed
        self._sequences.add(child)
        self._prefill_tokens += child.computed
        if tail:
            self._take(1)
            mine.plain = 1
            self._moved += tail * self.token_bytes
        self._prefill_tail += self._waste(child, mine.findable + mine.plain)
        return True

    def take_moved_bytes(self) -> int:
        moved, self._moved = self._moved, 0
        return moved

    def join(self, seq: Sequence) -> None:
        held: Held = seq.store
        seq.store = held.findable + held.plain
        super().join(seq)
        seq.store = held

    def leave(self, seq: Sequence) -> None:
        self._match = None
        held: Held = seq.store
        super().leave(seq)
        held.plain = seq.store - held.findable  # taken while decoding, not yet told apart
        seq.store = held
        self._publish(seq, held, (seq.base + self.step) // self.block_size)

    def _take(self, blocks: int) -> None:
        if blocks:
            self._match = None
            self.free -= blocks
            self.pool.take(blocks)

    def _publish(self, seq: Sequence, held: Held, full: int) -> None:
        """Make blocks [held.findable, full) of `seq` findable."""
        at = held.findable
        if at >= full:
            return
        held.plain -= full - at
        held.findable = full
        for id, first, count in self.content(seq):
            stop = min(first + count, full)
            if at >= stop:
                continue
            last = held.parts[-1][0] if held.parts else None
            run = self.pool.publish(id, at, stop, last)
            if run is last:
                held.parts[-1] = (run, stop)
            else:
                held.parts.append((run, stop))
            at = stop
            if at >= full:
                return

    # -- what it looks like -----------------------------------------------------------------------------------------

    def plain_free(self) -> int:
        return self.pool.plain

    def _used_tokens(self) -> int:
        return super()._used_tokens() - self._saved_blocks * self.block_size

    def _shared_tokens(self) -> int:
        return self._saved_blocks * self.block_size

    def _blocks_of(self, seq: Sequence) -> int:
        if seq.decoding:
            return -(-(seq.base + self.step) // self.block_size)
        held: Held = seq.store
        return held.findable + held.plain

    def memory_map(self) -> list[tuple[int, int, int]]:
        """A shared block is drawn with the first of its sequences; idle prefix blocks follow as row −1."""
        at, found, seen = 0, [], set()
        for seq in sorted(self._sequences, key=lambda seq: seq.admitted):
            held: Held = seq.store
            shared = 0
            for run in held.runs():
                shared += run.hi - run.lo if run in seen else 0
                seen.add(run)
            end = at + (self._blocks_of(seq) - shared) * self.block_bytes
            if end > at:
                found.append((at, end, seq.row))
            at = end
        idle = (self.free - self.pool.plain) * self.block_bytes
        return [*found, (at, at + idle, -1)] if idle else found

    def check(self) -> None:
        references: dict[Run, int] = {}
        tokens = tail = undecided = 0
        for seq in self._sequences:
            held: Held = seq.store
            at = 0
            for run in held.runs():
                assert run.lo == at, (seq, run)
                at = run.hi
                references[run] = references.get(run, 0) + 1
            assert at == held.findable, (seq, at, held.findable)
            computed = seq.base + self.step if seq.decoding else seq.computed
            blocks = -(-computed // self.block_size)
            undecided += blocks - held.findable
            tokens += computed
            tail += self._waste(seq, blocks)
        self.pool.check(self.free, references)
        held_blocks = sum(run.hi - run.lo for run in references) + undecided
        assert held_blocks + self.free == self.usable, (held_blocks, self.free, self.usable)
        saved = sum((count - 1) * (run.hi - run.lo) for run, count in references.items())
        assert saved == self._saved_blocks, (saved, self._saved_blocks)
        self._settle()
        assert tail == self._tail + self._prefill_tail, (tail, self._tail, self._prefill_tail)
        assert tokens == super()._used_tokens(), (tokens, super()._used_tokens())
        self.stats().check()
