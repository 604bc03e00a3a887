"""Hash prefix cache over paged blocks, as in vLLM: full blocks stay findable by content until they are taken.

Rules (vLLM V1, block_pool.py and kv_cache_manager.py, learned from recordings of its scheduler):
* A block is findable from the moment it is full (scheduled to be), until it is taken for something else.
* Free blocks wait in one queue. A finished or preempted sequence appends its blocks last block first, so that the
  ends of prefixes go before their beginnings; new blocks are taken from the head; a hit takes a block out of the queue.
* A hit never covers the whole input: at least one token is computed. Full blocks only.
* The same content may be held twice (two sequences computed it at once); the copy that was findable first serves hits.

Blocks are kept as *runs*: neighbouring blocks of one content id with the same references, one queue entry together.
A 512-token trace block under 16-token cache blocks is one run of 32, not 32 objects, and splits only when it must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mypy_extensions import mypyc_attr

from kvsim.cache.base import Sequence
from kvsim.cache.paged import Paged

Part = tuple[int, int, int]
"""(content id, first block, blocks): a stretch of a sequence's full blocks; ids are chained, so equal ids at the same
place mean equal prefixes"""

ENDLESS = 1 << 60


class Run:
    """Blocks [lo, hi) of content `id`: physical neighbours in a sequence. `ref` sequences hold them; 0: in the queue.

    When a run splits, it keeps the lower part and `tail` leads to the upper one, so that sequences that hold both
    parts through this run find them again.
    """

    __slots__ = ("born", "hi", "id", "lo", "next", "prev", "ref", "tail")

    def __init__(self, id: int, lo: int, hi: int, ref: int) -> None:
        self.id = id
        self.lo = lo
        self.hi = hi
        self.ref = ref
        self.born = 0
        """running number of the run: when it became findable"""
        self.tail: Run | None = None
        self.prev: Run = self
        self.next: Run = self

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.lo}:{self.hi}, ref={self.ref})"


PLAIN = -1
"""id of blocks without findable content"""


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
    """Paged blocks with a hash prefix cache and least-recently-used replacement.

    Invariants: the queue holds exactly the free blocks; a run is in the queue if and only if nobody holds it; every
    findable run is in the index of its id.
    """

    def __init__(
        self, *, blocks: int, block_size: int, token_bytes: int, unusable: int = 0, reuse: bool = True,
        forks: bool = False,
    ) -> None:
        """`reuse`: whether blocks stay findable when nobody holds them, and are found at all; without it blocks are
        shared by forks only. `forks`: whether there will be any."""
        super().__init__(blocks=blocks, block_size=block_size, token_bytes=token_bytes, unusable=unusable)
        self.reuse = reuse
        self.copies = forks
        self._moved = 0
        self.evicted_blocks = 0
        self.evicted: Callable[[int, int, int], None] | None = None
        """told (content id, first block, block after the last) of what is forgotten"""
        self._index: dict[int, list[Run]] = {}
        """content id → its runs, in the order they became findable"""
        self._plain_free = self.usable
        self._born = 0
        self._saved_blocks = 0
        """blocks that would be held more if nothing were shared"""
        self._match: tuple[Sequence, list[tuple[Run, int, int]]] | None = None
        self._queue = Run(PLAIN, 0, 0, 0)
        """sentinel of the ring of idle runs; .next is taken first"""
        if self.usable:
            self._append(Run(PLAIN, 0, self.usable, 0))

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
        index = self._index
        for id, first, count in self.content(seq):
            end = min(first + count, limit)
            while at < end:
                for run in index.get(id, ()):
                    if run.lo <= at < run.hi:
                        stop = min(run.hi, end)
                        found.append((run, at, stop))
                        at = stop
                        break
                else:
                    return found
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
            piece = self._piece(run, start, stop)
            if piece.ref == 0:
                self._remove(piece)
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
        self._give_plain(held.plain)
        for run in reversed(list(held.runs())):
            run.ref -= 1
            if run.ref:
                self._saved_blocks -= run.hi - run.lo
            elif self.reuse:
                self.free += run.hi - run.lo
                self._append(run)
            else:
                self._forget(run)
                self._give_plain(run.hi - run.lo)
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

    # -- runs, the index and the queue ------------------------------------------------------------------------------

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
            runs = self._index.setdefault(id, [])
            last = held.parts[-1] if held.parts else None
            if last and len(runs) == 1 and runs[0] is last[0] and last[0].ref == 1 and last[0].hi == last[1] == at:
                last[0].hi = stop
                held.parts[-1] = (last[0], stop)
            else:
                run = Run(id, at, stop, 1)
                self._born += 1
                run.born = self._born
                runs.append(run)
                held.parts.append((run, stop))
            at = stop
            if at >= full:
                return

    def _piece(self, run: Run, start: int, stop: int) -> Run:
        """The run that covers exactly [start, stop), split off where it must be."""
        if run.lo < start:
            run = self._split(run, start)
        if stop < run.hi:
            self._split(run, stop)
        return run

    def _split(self, run: Run, at: int) -> Run:
        """Cut `run` before block `at`; returns the upper part. In the queue the upper part goes first."""
        upper = Run(run.id, at, run.hi, run.ref)
        upper.tail = run.tail
        run.tail = upper
        run.hi = at
        runs = self._index[run.id]
        runs.insert(runs.index(run) + 1, upper)
        if run.ref == 0:
            upper.prev, upper.next = run.prev, run
            run.prev.next = upper
            run.prev = upper
        return upper

    def _next(self) -> Run:
        """The run whose blocks go next."""
        return self._queue.next

    def _append(self, run: Run) -> None:
        last = self._queue.prev
        run.prev, run.next = last, self._queue
        last.next = self._queue.prev = run
        run.tail = None  # nobody holds it: no sequence has to find the upper part through it

    def _remove(self, run: Run) -> None:
        run.prev.next = run.next
        run.next.prev = run.prev

    def _give_plain(self, blocks: int) -> None:
        if not blocks:
            return
        self.free += blocks
        self._plain_free += blocks
        first = self._queue.next
        if first.id == PLAIN and first is not self._queue:
            first.hi += blocks
        else:
            run = Run(PLAIN, 0, blocks, 0)
            run.prev, run.next = self._queue, first
            first.prev = self._queue.next = run

    def _take(self, blocks: int) -> None:
        """Take `blocks` blocks (they are free) from the head of the queue; content in them is forgotten."""
        if not blocks:
            return
        self._match = None
        self.free -= blocks
        while blocks:
            run = self._next()
            size = run.hi - run.lo
            part = min(size, blocks)
            if run.id == PLAIN:
                self._plain_free -= part
            else:
                self.evicted_blocks += part
                if self.evicted is not None:
                    self.evicted(run.id, run.hi - part, run.hi)
            if part == size:
                self._remove(run)
                if run.id != PLAIN:
                    self._forget(run)
            else:
                run.hi -= part
            blocks -= part

    def _forget(self, run: Run) -> None:
        """A run's content can no longer be found."""
        runs = self._index[run.id]
        runs.remove(run)
        if not runs:
            del self._index[run.id]

    # -- what it looks like -----------------------------------------------------------------------------------------

    def plain_free(self) -> int:
        return self._plain_free

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
        idle = (self.free - self._plain_free) * self.block_bytes
        return [*found, (at, at + idle, -1)] if idle else found

    def check(self) -> None:
        queued = plain = 0
        run = self._queue.next
        while run is not self._queue:
            assert run.ref == 0 and run.hi > run.lo and run.next.prev is run, run
            queued += run.hi - run.lo
            plain += run.hi - run.lo if run.id == PLAIN else 0
            assert run.id == PLAIN or any(run is other for other in self._index[run.id]), run
            run = run.next
        assert (queued, plain) == (self.free, self._plain_free), (queued, plain, self.free, self._plain_free)
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
        for runs in self._index.values():
            for run in runs:
                assert run.ref == references.get(run, 0), run
        held_blocks = sum(run.hi - run.lo for run in references) + undecided
        assert held_blocks + self.free == self.usable, (held_blocks, self.free, self.usable)
        saved = sum((count - 1) * (run.hi - run.lo) for run, count in references.items())
        assert saved == self._saved_blocks, (saved, self._saved_blocks)
        self._settle()
        assert tail == self._tail + self._prefill_tail, (tail, self._tail, self._prefill_tail)
        assert tokens == self._prefill_tokens + self._sum_base + self._decoding * self.step
        self.stats().check()
