"""Block ids: chaining them, merging blocks that never occur apart, and laying them over a cache's blocks.

A prefix cache asks for `runs`: a cache block that ends at token e has the key (id of the trace block that holds token
e − 1, e). Ids are chained, so equal keys mean equal prefixes, at any ratio of the two block sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvsim.trace.types import BlockRule, Int, Trace

Run = tuple[int, int, int]
"""(block id, first cache block, how many cache blocks)"""


def runs(trace: Trace, row: int, cache_block: int) -> list[Run]:
    """Keys of one row's full cache blocks over prompt + output, as far as they have an id, in order of position.

    The run (id, first, count) stands for the cache blocks first … first + count − 1; the key of cache block i is
    (id, (i + 1) · cache_block). Runs follow on each other without a gap from block 0. `cache_block` in tokens, > 0.
    """
    found: list[Run] = []
    begin = 0
    for block, end in zip(trace.blocks(row).tolist(), trace.ends(row).tolist(), strict=True):
        first = begin // cache_block
        count = end // cache_block - first
        if count:
            found.append((block, first, count))
        begin = end
    return found


@dataclass(frozen=True)
class Blocks:
    """Ids as a file has them: those of row i are `ids[start[i]:start[i + 1]]`; `ends` is parallel to `ids`."""

    ids: Int
    start: Int
    ends: Int
    size: int
    rule: BlockRule

    @classmethod
    def of_size(cls, ids: Int, start: Int, size: int, rule: BlockRule, prompt: Int) -> Blocks:
        """Blocks of `size` tokens each; with rule `ceil` a row's last one ends with its prompt."""
        counts = np.diff(start)
        position = np.arange(len(ids), dtype=np.int64) - np.repeat(start[:-1], counts)
        ends = (position + 1) * size
        if rule == "ceil":
            ends = np.minimum(ends, np.repeat(prompt, counts))
        return cls(ids, start, ends, size, rule)

    def take(self, rows: Int) -> Blocks:
        """The blocks of these rows, in this order."""
        counts = np.diff(self.start)[rows]
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        where = np.arange(start[-1], dtype=np.int64) + np.repeat(self.start[rows] - start[:-1], counts)
        return Blocks(self.ids[where], start, self.ends[where], self.size, self.rule)


def chain(ids: Int, start: Int) -> Int:
    """Ids of contents → chained ids: the same number only where everything before is the same too."""
    known: dict[tuple[int, int], int] = {}
    chained = []
    bounds = start.tolist()
    contents = ids.tolist()
    for first, last in pairwise(bounds):
        before = -1
        for content in contents[first:last]:
            before = known.setdefault((before, content), len(known))
            chained.append(before)
    return np.asarray(chained, np.int64)


def dense(ids: Int) -> Int:
    """The same ids renumbered from 0 where they are sparse or negative (64-bit hashes)."""
    if len(ids) and (ids.min() < 0 or ids.max() > 4 * len(ids) + 1024):
        return np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return ids


def merge(blocks: Blocks, prompt: Int) -> tuple[Blocks, bool]:
    """Blocks that never occur apart become one, and ids become dense. Also says whether the ids were chained already.

    An id ends where some row's ids end, where some row's prompt ends, or where rows part ways, so every row is made of
    whole ids. Keys stay one to one: within a merged id, the end e still tells which of its blocks is meant.
    Where ids were not chained (one id after two different ones) they are chained first.
    """
    ids = dense(blocks.ids)
    if not len(ids):
        return blocks, True
    filled = np.flatnonzero(np.diff(blocks.start))
    heads, lasts = blocks.start[filled], blocks.start[filled + 1] - 1

    def before(ids: Int) -> tuple[Int, Int]:
        """The id before each reference (−1: none), and the one before each id."""
        previous = np.empty_like(ids)
        previous[1:] = ids[:-1]
        previous[heads] = -1
        of_id = np.full(ids.max() + 1, -2, np.int64)
        of_id[ids] = previous
        return previous, of_id

    previous, before_id = before(ids)
    chained = bool((before_id[ids] == previous).all())
    if not chained:
        ids = chain(ids, blocks.start)
        previous, before_id = before(ids)

    cut = np.zeros(len(before_id), bool)  # ids after which a new one must begin
    cut[ids[lasts]] = True
    inside = blocks.ends <= np.repeat(prompt, np.diff(blocks.start))
    prompt_last = np.flatnonzero(inside & ~np.append(inside[1:], False))
    cut[ids[prompt_last]] = True
    followers = np.bincount(before_id[before_id >= 0], minlength=len(before_id))
    cut |= followers > 1
    begins = before_id == -1
    begins[before_id >= 0] = cut[before_id[before_id >= 0]]

    begins_here = begins[ids]
    ends_here = np.append(begins_here[1:], True)
    ends_here[lasts] = True
    number = np.cumsum(begins) - 1
    start = np.concatenate([[0], np.cumsum(ends_here)]).astype(np.int64)[blocks.start]
    merged = Blocks(number[ids[begins_here]], start, blocks.ends[ends_here], blocks.size, blocks.rule)
    return merged, chained
