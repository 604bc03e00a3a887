"""Traces made of traces: faster, shorter, repeated. Each returns a new Trace and keeps parents and ids consistent.

A conversation's think times are people's, not the load's: rates move only where conversations (and requests without
one) begin, and what follows moves with its beginning.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.trace.arrivals import Arrivals
from kvsim.trace.build import MAX_TOKENS
from kvsim.trace.types import FORK, Int, Trace
from kvsim.units import NS_PER_S, seconds

_MAX_NS = 100 * 365 * 86_400 * NS_PER_S


def scale_rate(trace: Trace, factor: float) -> Trace:
    """`factor` times the rate: the time between the beginnings of conversations is divided by it."""
    _positive(factor, "rate scale")
    if len(trace) and trace.arrival_ns.max() > _MAX_NS * factor:
        raise InputError(f"rate scale is {factor:g}: the trace would take longer than a century")
    begins = trace.arrival_ns[trace.parent < 0]
    return _move(trace, np.rint(begins / factor).astype(np.int64))


def set_rate(trace: Trace, rate_per_s: float) -> Trace:
    """The trace at this mean rate in requests per second: rows ÷ the time from first to last beginning."""
    _positive(rate_per_s, "rate")
    rate = mean_rate(trace)
    if rate is None:
        raise InputError(f"{trace.name}: all requests arrive at once, there is no rate to set: choose arrivals")
    return scale_rate(trace, rate_per_s / rate)


def mean_rate(trace: Trace) -> float | None:
    """Rows ÷ the seconds between the first and the last beginning of a conversation; None where there are none."""
    begins = trace.arrival_ns[trace.parent < 0]
    span = seconds(int(begins[-1] - begins[0])) if len(begins) else 0.0
    return len(trace) / span if span > 0 else None


def set_arrivals(trace: Trace, process: Arrivals, seed: int = 0) -> Trace:
    """The same requests in the same order, with conversations beginning as the process says."""
    begins = process.times(int((trace.parent < 0).sum()), np.random.default_rng(seed))
    moved = _move(trace, begins - begins[:1])
    return moved.with_columns(notes=(*trace.notes, f"recorded arrivals replaced: {process.kind}, seed {seed}"))


def slice_time(trace: Trace, start_ns: int, end_ns: int | None = None) -> Trace:
    """Requests that arrive from `start_ns` to before `end_ns`; those whose parent is cut are cut too."""
    if start_ns < 0 or (end_ns is not None and end_ns <= start_ns):
        raise InputError(f"the slice from {seconds(start_ns):g} s has no length: its end must come after its start")
    inside = trace.arrival_ns >= start_ns
    if end_ns is not None:
        inside &= trace.arrival_ns < end_ns
    return shift(_keep(trace, inside), -start_ns)


def limit(trace: Trace, requests: int) -> Trace:
    """The first `requests` rows. Parents stand before their children, so no row loses its own."""
    if requests < 1:
        raise InputError(f"the limit is {requests} requests, it must be 1 or more")
    return take(trace, np.arange(min(requests, len(trace))))


def shift(trace: Trace, by_ns: int) -> Trace:
    """All arrivals `by_ns` later."""
    return trace.with_columns(arrival_ns=trace.arrival_ns + by_ns)


def repeat(trace: Trace, times: int) -> Trace:
    """The trace `times` times, one after the other at its mean gap, each time by new people.

    A copy's sessions and block ids are its own, so it never hits what the copy before left in a cache.
    """
    if times < 1:
        raise InputError(f"repeat is {times}, it must be 1 or more")
    n = len(trace)
    if times == 1 or n == 0:
        return trace
    span = int(trace.arrival_ns.max() - trace.arrival_ns.min())
    period = span + span // max(1, n - 1)
    copy = np.repeat(np.arange(times, dtype=np.int64), n)

    def again(column: Int) -> Int:
        return np.tile(column, times)

    def own(column: Int) -> Int:
        """References to one of `size` things become references to the copy's own."""
        size = int(column.max(initial=-1)) + 1
        return np.where(again(column) < 0, -1, again(column) + copy * size)

    blocks: dict[str, object] = {}
    if trace.has_ids:
        refs = np.repeat(np.arange(times, dtype=np.int64), len(trace.block_ids))
        starts = [trace.block_start[:-1] + k * len(trace.block_ids) for k in range(times)]
        blocks["block_ids"] = again(trace.block_ids) + refs * (int(trace.block_ids.max()) + 1)
        blocks["block_start"] = np.append(np.concatenate(starts), len(refs))
        blocks["block_end"] = None if trace.block_end is None else again(trace.block_end)
    return trace.with_columns(
        arrival_ns=again(trace.arrival_ns) + copy * period,
        prompt_tokens=again(trace.prompt_tokens),
        output_tokens=again(trace.output_tokens),
        session=own(trace.session),
        parent=np.where(again(trace.parent) < 0, -1, again(trace.parent) + copy * n),
        after_parent_ns=again(trace.after_parent_ns),
        priority=again(trace.priority),
        **blocks,
    )


def scale_lengths(trace: Trace, factor: float) -> Trace:
    """Prompts and outputs `factor` times as long, at least one token where there was one. Shared prefixes scale too."""
    _positive(factor, "length scale")

    def scaled(tokens: Int) -> Int:
        longer: Int = np.rint(tokens * factor).astype(np.int64)
        return np.maximum(longer, np.minimum(tokens, 1))

    longest = max(trace.prompt_tokens.max(initial=0), trace.output_tokens.max(initial=0)) * factor
    if longest > MAX_TOKENS:
        raise InputError(f"length scale is {factor:g}: a request would have {longest:.3g} tokens, 10⁹ is the most")
    prompt, output = scaled(trace.prompt_tokens), scaled(trace.output_tokens)
    columns: dict[str, object] = {"prompt_tokens": prompt, "output_tokens": output}
    if trace.has_ids:
        ends = trace.all_ends()
        most = np.repeat(prompt + output, np.diff(trace.block_start))
        columns["block_end"] = np.minimum(np.floor(ends * factor).astype(np.int64), most)
        columns["block_rule"], columns["block_size"] = "extent", 0
    return trace.with_columns(**columns)


def sample(trace: Trace, answers: int) -> Trace:
    """`answers` answers to every prompt (parallel sampling, n > 1): the others are forks of the first, as long as it.

    Prompts without block ids get one each, so that caches know that all of its answers begin with it; an answer's own
    ids stay with the first."""
    if answers == 1:
        return trace
    n = len(trace)
    first = np.arange(n, dtype=np.int64) * answers
    source = np.repeat(np.arange(n, dtype=np.int64), answers)
    fork = np.arange(n * answers) % answers > 0
    parent = np.append(first, -1)[trace.parent]  # the last entry is where parent −1 points
    if trace.has_ids:
        ids, ends, counts = trace.block_ids, trace.all_ends(), np.diff(trace.block_start)
    else:
        ids, ends, counts = np.arange(n, dtype=np.int64), trace.prompt_tokens, np.ones(n, np.int64)
    begin = np.cumsum(counts) - counts
    of_prompt = np.add.reduceat(np.append(ends <= np.repeat(trace.prompt_tokens, counts), False), begin) * (counts > 0)
    kept = np.where(fork, of_prompt[source], counts[source])
    start = np.append(0, np.cumsum(kept)).astype(np.int64)
    where = np.arange(start[-1]) + np.repeat(begin[source] - start[:-1], kept)
    return trace.with_columns(
        arrival_ns=trace.arrival_ns[source],
        prompt_tokens=trace.prompt_tokens[source],
        output_tokens=trace.output_tokens[source],
        session=trace.session[source],
        parent=np.where(fork, first[source], parent[source]),
        after_parent_ns=np.where(fork, FORK, trace.after_parent_ns[source]),
        priority=trace.priority[source],
        block_ids=ids[where],
        block_start=start,
        block_end=ends[where],
        block_rule="extent",
        block_size=0,
    )


def take(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    """These rows in this order. The parent of each must be among them, before it."""
    position = np.full(len(trace) + 1, -1, np.int64)  # the last entry is where parent −1 points
    position[rows] = np.arange(len(rows))
    return copies(trace, rows).with_columns(parent=position[trace.parent[rows]])


def copies(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    """These rows in this order, some of them perhaps several times. Parents are still rows of `trace`: the caller says
    which copy they are."""
    blocks: dict[str, object] = {}
    if trace.has_ids:
        counts = np.diff(trace.block_start)[rows]
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        where = np.arange(start[-1]) + np.repeat(trace.block_start[rows] - start[:-1], counts)
        blocks["block_ids"], blocks["block_start"] = trace.block_ids[where], start
        blocks["block_end"] = None if trace.block_end is None else trace.block_end[where]
    return trace.with_columns(
        arrival_ns=trace.arrival_ns[rows],
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
        session=trace.session[rows],
        parent=trace.parent[rows],
        after_parent_ns=trace.after_parent_ns[rows],
        priority=trace.priority[rows],
        **blocks,
    )


def _move(trace: Trace, begins: Int) -> Trace:
    """The trace with other beginnings, in the order of its rows without a parent; what follows moves with them."""
    by_root = np.zeros(len(trace), np.int64)
    by_root[trace.parent < 0] = begins - trace.arrival_ns[trace.parent < 0]
    moved = trace.arrival_ns + by_root[roots(trace)]
    # Ties go by the old order, in which parents stand before their children.
    return take(trace.with_columns(arrival_ns=moved), np.argsort(moved, kind="stable"))


def _keep(trace: Trace, inside: NDArray[np.bool_]) -> Trace:
    """The rows inside whose ancestors are all inside."""
    kept = inside.copy()
    for row in np.flatnonzero(trace.parent >= 0).tolist():  # parents come first
        kept[row] &= kept[trace.parent[row]]
    return take(trace, np.flatnonzero(kept))


def roots(trace: Trace) -> Int:
    """The row that begins each row's chain, by pointer doubling."""
    root = np.where(trace.parent < 0, np.arange(len(trace)), trace.parent)
    while (root[root] != root).any():
        root = root[root]
    found: Int = root
    return found


def _positive(value: float, what: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{what} is {value}, it must be a number above 0")
