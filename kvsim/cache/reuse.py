"""What a prefix cache of a given size could reuse of a trace: an offline replay, one request after the other, no time.

A request finds the leading run of its blocks that are cached; then all its blocks count as used at once, and the cache
keeps the best `capacity` blocks of what it had and what the request brought. Which are best is a rank: `lru` latest
use, `fifo` latest entry, `lfu` most uses while cached, and `belady` nearest next use, which no engine can know and no
policy can beat. Of blocks that one request used the earlier ones are kept: a block is of no use without those before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from kvsim.errors import InputError
from kvsim.trace.types import Int, Trace

RANKS: dict[str, Callable[[int, int, int, int], int]] = {
    "lru": lambda before, row, next_row, rows: row,
    "fifo": lambda before, row, next_row, rows: before or row,
    "lfu": lambda before, row, next_row, rows: (before // rows + 1) * rows + row,
    "belady": lambda before, row, next_row, rows: -next_row,
}
"""policy → rank of a block that a row uses, the smallest goes first: from the rank before (0: it was not cached), the
row's number (from 1), the number of the next row that uses the block, and how many rows there are (lfu: uses, then row)
"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A trace cut into a cache's blocks: row i refers to `keys[start[i]:start[i + 1]]`, dense integers, equal where the
    content up to the block's end is equal."""

    block_size: int
    keys: Int
    start: Int
    next_row: Int
    """row of the next reference to the same key, parallel to keys; the number of rows where there is none"""
    prompt_tokens: Int

    @property
    def distinct(self) -> int:
        """Blocks that an unlimited cache would hold in the end."""
        return int(self.keys.max()) + 1 if len(self.keys) else 0

    @classmethod
    def of(cls, trace: Trace, block_size: int, *, partial: bool = False) -> Blocks:
        """The blocks of `block_size` tokens that the trace has ids for, also where its own blocks are others: full ones
        (real caches share no others), with `partial` also what is left at the end of what has ids.

        A block that ends at token e is known by (id of the trace's block that holds token e − 1, e), which is enough
        because ids are chained. Raises InputError where the trace has no ids.
        """
        if not trace.has_ids:
            raise InputError(f"trace {trace.name!r} has no block ids, so nothing says what its requests could share")
        ends, first = trace.all_ends(), trace.block_start[:-1]
        counts = np.diff(trace.block_start)
        covered = np.where(counts > 0, ends[np.maximum(trace.block_start[1:] - 1, 0)], 0)
        blocks = -(-covered // block_size) if partial else covered // block_size
        start = np.concatenate([[0], np.cumsum(blocks)])
        row = np.repeat(np.arange(len(trace)), blocks)
        end = np.minimum((np.arange(len(row)) - start[row] + 1) * block_size, covered[row])
        # position of (row, end − 1) among all (row, end of a trace block): one search for all rows
        span = int(ends.max()) + 1
        holder = np.searchsorted(np.repeat(np.arange(len(trace)), counts) * span + ends, row * span + end)
        assert (holder >= first[row]).all()
        _, keys = np.unique(trace.block_ids[holder] * span + end, return_inverse=True)
        order = np.lexsort((row, keys))
        follows = keys[order][1:] == keys[order][:-1]
        next_row = np.full(len(keys), len(trace), np.int64)
        next_row[order[:-1][follows]] = row[order[1:][follows]]
        return cls(block_size, keys.astype(np.int64), start, next_row, trace.prompt_tokens)


def leading_hits(blocks: Blocks, capacity: int | None, policy: str = "lru") -> Iterator[int]:
    """For each row in turn, how many of its blocks a cache of `capacity` blocks (None: unlimited) has from the first
    one on. O(n log n) in block references."""
    rank = RANKS[policy]
    keys, next_rows, starts = blocks.keys.tolist(), blocks.next_row.tolist(), blocks.start.tolist()
    rows, longest = len(starts), int(np.diff(blocks.start).max(initial=0)) + 1
    cached: dict[int, int] = {}
    """block → rank · longest − its place in the row, so that the smallest goes first"""
    heap: list[tuple[int, int]] = []
    for row in range(rows - 1):
        first, end = starts[row], starts[row + 1]
        at = first
        while at < end and keys[at] in cached:
            at += 1
        yield at - first
        for at in range(first, end):
            key = keys[at]
            before = cached.get(key, 0)
            order = rank(-(-before // longest), row + 1, next_rows[at] + 1, rows) * longest - (at - first)
            if order != before:
                cached[key] = order
                if capacity is not None:
                    heappush(heap, (order, key))
        while capacity is not None and len(cached) > capacity:
            order, key = heappop(heap)
            if cached.get(key) == order:
                del cached[key]


def reused_tokens(blocks: Blocks, capacity: int | None, policy: str = "lru") -> int:
    """Prompt tokens that a cache of `capacity` blocks serves, rows taken in the trace's order. At least one token of
    each prompt is computed."""
    size = blocks.block_size
    hits = zip(leading_hits(blocks, capacity, policy), blocks.prompt_tokens.tolist(), strict=True)
    return sum(min(found, (prompt - 1) // size) * size for found, prompt in hits)
