"""Prefix blocks that leave in another order than least recently used: first in first out, least frequently used, or
Belady's optimum, which looks up when each block is wanted next and is the bound that no real order can pass.

Blocks that hold nothing findable are taken first; of the findable ones the run with the smallest rank goes, from its
end. Ranks are kept in a heap with outdated entries, so taking a block costs O(log runs).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from kvsim.cache.base import Sequence
from kvsim.cache.prefix import PrefixPaged
from kvsim.cache.run_pool import PLAIN, Run, RunPool
from kvsim.trace.types import Trace

Rank = tuple[int, ...]
NEVER_AGAIN = 1 << 60


class Future:
    """When each content is wanted next: rows of a trace in order of arrival."""

    def __init__(self, trace: Trace) -> None:
        order = np.argsort(trace.arrival_ns, kind="stable")
        place = np.empty(len(trace), np.int64)
        place[order] = np.arange(len(trace))
        self.place: list[int] = place.tolist()
        """row → its place in the order of arrival"""
        uses: dict[int, list[int]] = {}
        for row in order.tolist():
            for id in dict.fromkeys(trace.blocks(row).tolist()):
                uses.setdefault(id, []).append(self.place[row])
        self._uses = uses
        self.now = -1
        """the latest place that has been admitted"""

    def next_use(self, id: int) -> int:
        places = self._uses.get(id, [])
        at = bisect_right(places, self.now)
        return places[at] if at < len(places) else NEVER_AGAIN


class RankedPool(RunPool):
    """A pool of runs with a rank in place of the queue's order.

    `order`: fifo (when it became findable), lfu (hits, then last use), belady (furthest next use first; it needs
    `future`).
    """

    def __init__(self, blocks: int, order: str, future: Future | None) -> None:
        self._ranks: dict[str, Callable[[Run], Rank]] = {"fifo": self._fifo, "lfu": self._lfu, "belady": self._belady}
        self._rank = self._ranks[order]
        self._future = future
        self._heap: list[tuple[Rank, int, int, Run]] = []
        self._entry: dict[Run, int] = {}
        """idle findable run → its valid entry"""
        self._entries = 0
        self._hits: dict[tuple[int, int], int] = {}
        """(content id, first block of a run) → times it was found"""
        super().__init__(blocks)

    def hit(self, run: Run) -> None:
        """`run` was found."""
        self._hits[run.id, run.lo] = self._hits.get((run.id, run.lo), 0) + 1

    def _fifo(self, run: Run) -> Rank:
        return (run.born,)

    def _lfu(self, run: Run) -> Rank:
        return self._hits.get((run.id, run.lo), 0), self._entries

    def _belady(self, run: Run) -> Rank:
        assert self._future is not None
        return (-self._future.next_use(run.id),)

    def append(self, run: Run) -> None:
        super().append(run)
        self._push(run)

    def _push(self, run: Run) -> None:
        if run.id == PLAIN:
            return
        self._entries += 1
        self._entry[run] = self._entries
        heappush(self._heap, (self._rank(run), -run.lo, self._entries, run))

    def remove(self, run: Run) -> None:
        super().remove(run)
        self._entry.pop(run, None)

    def split(self, run: Run, at: int) -> Run:
        upper = super().split(run, at)
        upper.born = run.born
        if upper.ref == 0:
            self._push(upper)
        return upper

    def head(self) -> Run:
        first: Run = self._queue.next
        if first.id == PLAIN and first is not self._queue:
            return first  # plain blocks are put at the head of the ring
        while True:
            rank, lo, entry, run = self._heap[0]
            if self._entry.get(run) == entry:
                fresh = self._rank(run) if self._rank == self._belady else rank
                if fresh == rank:
                    return run
                heappop(self._heap)  # its next use has come and gone without a hit: rank it anew
                heappush(self._heap, (fresh, lo, entry, run))
            else:
                heappop(self._heap)

    def check(self, free: int, references: dict[Run, int]) -> None:
        super().check(free, references)
        run: Run = self._queue.next
        while run is not self._queue:
            assert run.id == PLAIN or run in self._entry, f"{run} is idle and has no rank"
            run = run.next


class RankedPrefix(PrefixPaged):
    """`PrefixPaged` whose idle blocks leave in the order of a RankedPool."""

    def __init__(
        self, *, blocks: int, block_size: int, token_bytes: int, order: str, future: Future | None = None,
        unusable: int = 0,
    ) -> None:
        self._future = future
        self._ranked = RankedPool(blocks - unusable, order, future)
        super().__init__(
            blocks=blocks, block_size=block_size, token_bytes=token_bytes, unusable=unusable, pool=self._ranked
        )

    def admit(self, seq: Sequence, tokens: int, ensure: int = 0) -> bool:
        if self._future is not None:
            self._future.now = max(self._future.now, self._future.place[seq.row])
        if not super().admit(seq, tokens, ensure):
            return False
        for run, _ in seq.store.parts:
            if run.lo * self.block_size < seq.cached:
                self._ranked.hit(run)
        return True
