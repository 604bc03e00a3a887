"""Other people from the same population: shorter traces, and other ones, made of a trace's whole conversations.

Both are put together of blocks: conversations that began one after the other, with the times between them, so that
bursts, and what neighbours share, stay as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.trace import Trace, transform
from kvsim.trace.types import Int

SPREAD = 50
"""blocks of an excerpt"""
BLOCKS = 20
"""blocks that other people are drawn in: long against a queue's memory, and enough of them to differ"""


def excerpt(trace: Trace, requests: int) -> Trace:
    """At least `requests` of the trace's requests in SPREAD blocks that lie evenly over all of it, so that it has the
    whole trace's quiet and busy times; the trace itself where it has no more."""
    if requests >= len(trace):
        return trace
    sizes = _sizes(trace)
    before = np.cumsum(sizes) - sizes  # requests of the conversations that began earlier
    order = np.argsort(before % (len(trace) / SPREAD), kind="stable")
    enough = int(np.searchsorted(np.cumsum(sizes[order]), requests)) + 1
    return _of(trace, np.sort(order[:enough]))


def others(trace: Trace, requests: int, rng: np.random.Generator) -> Trace:
    """At least `requests` requests of other people: a block bootstrap. Blocks begin anywhere, and go on at the trace's
    beginning where they pass its end; who is drawn twice is two people."""
    sizes = _sizes(trace)
    ends = np.cumsum(np.concatenate([sizes, sizes]))
    chosen: list[Int] = []
    total = 0
    while total < requests:
        first = int(rng.integers(len(sizes)))
        before = int(ends[first] - sizes[first])
        after = int(np.searchsorted(ends, before + min(max(1, requests // BLOCKS), requests - total))) + 1
        chosen.append(np.arange(first, after) % len(sizes))
        total += int(ends[after - 1]) - before
    return _of(trace, np.concatenate(chosen))


def laps(trace: Trace, row: Int, lap: Int, at: Int, own: NDArray[np.bool_]) -> Trace:
    """Rows of `trace`, the same one perhaps in several laps, arriving at `at`, which must be in order, parents first.

    A lap's people are its own: their sessions, and the block ids of `own` (by id; see own_ids)."""
    n, count = len(trace), int(lap.max(initial=0)) + 1
    copies = transform.copies(trace, row)
    where = np.full(n * count + 1, -1, np.int64)  # the last entry is where parent −1 points
    where[row * count + lap] = np.arange(len(row))
    parent = trace.parent[row]
    blocks: dict[str, object] = {}
    if trace.has_ids:
        ids = copies.block_ids
        of_ref = np.repeat(lap, np.diff(copies.block_start))
        _, blocks["block_ids"] = np.unique(ids * count + np.where(own[ids], of_ref, 0), return_inverse=True)
    session = copies.session
    return copies.with_columns(
        arrival_ns=at, parent=where[np.where(parent < 0, -1, parent * count + lap)],
        session=np.where(session < 0, -1, session * count + lap), **blocks)


def own_ids(trace: Trace) -> NDArray[np.bool_]:
    """By block id: whether it belongs to the people of one lap. So do the ids of one conversation, and those that are
    used over less than half of the trace; what is used all along (a system prompt) is the same for all."""
    if not trace.has_ids:
        return np.zeros(0, bool)
    ids = trace.block_ids
    root = transform.roots(trace)
    refs = np.repeat(np.arange(len(trace)), np.diff(trace.block_start))
    begins = trace.arrival_ns[root]

    def spread(values: Int) -> Int:
        low, high = np.full(int(ids.max()) + 1, np.iinfo(np.int64).max), np.full(int(ids.max()) + 1, -1)
        np.minimum.at(low, ids, values[refs])
        np.maximum.at(high, ids, values[refs])
        wide: Int = high - low
        return wide

    own: NDArray[np.bool_] = (spread(root) <= 0) | (spread(begins) < int(begins.max() - begins.min()) / 2)
    return own


def _sizes(trace: Trace) -> Int:
    """Requests of each conversation, in order of beginning."""
    sizes: Int = np.bincount(transform.roots(trace), minlength=len(trace))[trace.parent < 0]
    return sizes


def _of(trace: Trace, chosen: Int) -> Trace:
    """Conversations by number, each as long after the one before as the one that followed it in the trace. A number
    that comes again is of new people."""
    root, sizes = transform.roots(trace), _sizes(trace)
    first = np.flatnonzero(trace.parent < 0)
    begins = trace.arrival_ns[first]
    mean = int(begins[-1] - begins[0]) // max(1, len(first) - 1)
    begin = np.cumsum(np.diff(begins, append=begins[-1] + mean)[chosen])  # of the next one
    begin = np.concatenate([[0], begin[:-1]])
    count = sizes[chosen]
    place = np.repeat(np.arange(len(chosen)), count)
    by_root = np.argsort(root, kind="stable")  # rows of one conversation after the other, each in order
    starts = np.cumsum(sizes) - sizes
    row = by_root[np.repeat(starts[chosen] - (np.cumsum(count) - count), count) + np.arange(len(place))]
    at = begin[place] + trace.arrival_ns[row] - trace.arrival_ns[root[row]]
    lap = _times_before(chosen)[place]
    order = np.lexsort((row, at))
    return laps(trace, row[order], lap[order], at[order], own_ids(trace))


def _times_before(values: Int) -> Int:
    """How often each value came before, at its place."""
    order = np.argsort(values, kind="stable")
    same = values[order]
    begins = np.flatnonzero(np.append(True, same[1:] != same[:-1]))
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.repeat(begins, np.diff(np.append(begins, len(values))))
    return found
