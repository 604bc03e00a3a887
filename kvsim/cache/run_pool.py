"""The blocks of a prefix cache as *runs*: which content is findable, and in what order free blocks are taken.

A run is neighbouring blocks of one content id with the same references, one queue entry together: a 512-token trace
block under 16-token cache blocks is one run of 32, not 32 objects, and splits only when it must.

Rules (vLLM V1, block_pool.py, learned from recordings of its scheduler):
* A block is findable from the moment it is full (scheduled to be), until it is taken for something else.
* Free blocks wait in one queue; new blocks are taken from the head; a hit takes a block out of the queue.
* The same content may be held twice (two sequences computed it at once); the copy that was findable first serves hits.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import mypyc_attr

from kvsim.cache.ring import Link

PLAIN = -1
"""id of blocks without findable content"""


class Run(Link):
    """Blocks [lo, hi) of content `id`: physical neighbours in a sequence. `ref` sequences hold them; 0: in the queue.

    When a run splits, it keeps the lower part and `tail` leads to the upper one, so that sequences that hold both
    parts through this run find them again. A link of the ring of free runs.
    """

    __slots__ = ("born", "hi", "id", "lo", "ref", "tail")

    def __init__(self, id: int, lo: int, hi: int, ref: int) -> None:
        super().__init__()
        self.id = id
        self.lo = lo
        self.hi = hi
        self.ref = ref
        self.born = 0
        """running number of the run: when it became findable"""
        self.tail: Run | None = None

    def __repr__(self) -> str:
        return f"Run({self.id}, {self.lo}:{self.hi}, ref={self.ref})"


@mypyc_attr(allow_interpreted_subclasses=True)
class RunPool:
    """`blocks` blocks, all free at first. Who holds a run counts itself in `ref`.

    Invariants: the queue holds exactly the free blocks; a run is in the queue if and only if nobody holds it; every
    findable run is in the index of its id.
    """

    def __init__(self, blocks: int) -> None:
        self.plain = blocks
        """free blocks that hold nothing findable"""
        self.evicted_blocks = 0
        self.evicted: Callable[[int, int, int], None] | None = None
        """told (content id, first block, block after the last) of what is forgotten"""
        self._index: dict[int, list[Run]] = {}
        """content id → its runs, in the order they became findable"""
        self._born = 0
        self._queue = Run(PLAIN, 0, 0, 0)
        """sentinel of the ring of free runs; .next is taken first"""
        if blocks:
            self.append(Run(PLAIN, 0, blocks, 0))

    # -- what is findable -------------------------------------------------------------------------------------------

    def find(self, id: int, block: int) -> Run | None:
        """The run that serves block number `block` of content `id`."""
        for run in self._index.get(id, ()):
            if run.lo <= block < run.hi:
                return run
        return None

    def publish(self, id: int, lo: int, hi: int, last: Run | None) -> Run:
        """Blocks [lo, hi) of content `id`, which one sequence holds, are findable from now on, as part of the returned
        run. `last` holds the sequence's blocks before `lo`: it grows where it has no other reference and no copy."""
        runs = self._index.setdefault(id, [])
        if last is not None and len(runs) == 1 and runs[0] is last and last.ref == 1 and last.hi == lo:
            last.hi = hi
            return last
        run = Run(id, lo, hi, 1)
        self._born += 1
        run.born = self._born
        runs.append(run)
        return run

    def piece(self, run: Run, start: int, stop: int) -> Run:
        """The run that covers exactly [start, stop), split off where it must be."""
        if run.lo < start:
            run = self.split(run, start)
        if stop < run.hi:
            self.split(run, stop)
        return run

    def split(self, run: Run, at: int) -> Run:
        """Cut `run` before block `at`; returns the upper part. In the queue the upper part goes first."""
        upper = Run(run.id, at, run.hi, run.ref)
        upper.tail = run.tail
        run.tail = upper
        run.hi = at
        runs = self._index[run.id]
        runs.insert(runs.index(run) + 1, upper)
        if run.ref == 0:
            upper.link(run)
        return upper

    def forget(self, run: Run) -> None:
        """A run's content can no longer be found."""
        runs = self._index[run.id]
        runs.remove(run)
        if not runs:
            del self._index[run.id]

    # -- what is free -----------------------------------------------------------------------------------------------

    def head(self) -> Run:
        """The run whose blocks go next."""
        first: Run = self._queue.next
        return first

    def append(self, run: Run) -> None:
        """Nobody holds `run` any more."""
        run.link(self._queue)
        run.tail = None  # nobody holds it: no sequence has to find the upper part through it

    def remove(self, run: Run) -> None:
        """`run` leaves the queue: somebody is about to hold it, or its blocks are taken."""
        run.unlink()

    def give(self, blocks: int) -> None:
        """Blocks that hold nothing findable come back: they are the next to go."""
        if not blocks:
            return
        self.plain += blocks
        first: Run = self._queue.next
        if first.id == PLAIN and first is not self._queue:
            first.hi += blocks
        else:
            Run(PLAIN, 0, blocks, 0).link(first)

    def take(self, blocks: int) -> None:
        """Take `blocks` blocks (they are free); content in them is forgotten."""
        while blocks:
            run = self.head()
            size = run.hi - run.lo
            part = min(size, blocks)
            if run.id == PLAIN:
                self.plain -= part
            else:
                self.evicted_blocks += part
                if self.evicted is not None:
                    self.evicted(run.id, run.hi - part, run.hi)
            if part == size:
                self.remove(run)
                if run.id != PLAIN:
                    self.forget(run)
            else:
                run.hi -= part
            blocks -= part

    def check(self, free: int, references: dict[Run, int]) -> None:
        """Raise AssertionError where an invariant is broken, `free` blocks being free and `references` what sequences
        hold, how often. Slow: for tests."""
        queued = plain = 0
        run: Run = self._queue.next
        while run is not self._queue:
            assert run.ref == 0 and run.hi > run.lo and run.next.prev is run, run
            queued += run.hi - run.lo
            plain += run.hi - run.lo if run.id == PLAIN else 0
            assert run.id == PLAIN or any(run is other for other in self._index[run.id]), run
            run = run.next
        assert (queued, plain) == (free, self.plain), (queued, plain, free, self.plain)
        for runs in self._index.values():
            for run in runs:
                assert run.ref == references.get(run, 0), run
