"""The last step of every reader: check the numbers, sort, unwrap, drop what is unusable, and make the Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.trace.chain import Blocks, merge
from kvsim.trace.types import Int, Trace, make_trace
from kvsim.units import NS_PER_S

MAX_TOKENS = 10**9
_MAX_NS = 2**62
_HOUR_NS = 3600 * NS_PER_S
UNKNOWN = np.iinfo(np.int64).min
"""arrival of a row with a parent whose time the file does not say"""

Where = Callable[[int], str]
"""row → "FILE line 17", for messages"""


def tokens(values: Sequence[object] | NDArray[np.float64], what: str, where: Where) -> Int:
    """Token counts, checked: whole, 0 … 10⁹. Raises InputError naming the first row that is not."""
    return _whole(values, what, where, 0, MAX_TOKENS, "a whole number of tokens from 0 to 10⁹")


def whole(values: Sequence[object] | NDArray[np.float64], what: str, where: Where) -> Int:
    """Whole numbers of moderate size (priorities, block sizes), checked."""
    return _whole(values, what, where, -(2**53), 2**53, "a whole number")


def times(values: Sequence[object] | NDArray[np.float64], scale: int, what: str, where: Where) -> Int:
    """Times in units of `scale` ns, checked, as integer nanoseconds."""
    numbers = floats(values, what, where)
    _refuse(~(np.abs(numbers) < _MAX_NS / scale), numbers, what, where, "a time in the column's unit")
    return np.rint(numbers * scale).astype(np.int64)


def floats(values: Sequence[object] | NDArray[np.float64], what: str, where: Where) -> NDArray[np.float64]:
    """Numbers as float64. Raises InputError at the first that is none; strings and booleans are none."""
    if isinstance(values, np.ndarray):
        return values
    if not all(type(value) in (int, float) for value in values):
        row = next(i for i, value in enumerate(values) if type(value) not in (int, float))
        raise InputError(f"{where(row)}: {what} is {values[row]!r}, it must be a number")
    return np.array(values, np.float64)


def _whole(
    values: Sequence[object] | NDArray[np.float64], what: str, where: Where, low: int, high: int, right: str
) -> Int:
    numbers = floats(values, what, where)
    with np.errstate(invalid="ignore"):
        bad = ~((numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers)))
    _refuse(bad, numbers, what, where, right)
    return numbers.astype(np.int64)


def _refuse(bad: NDArray[np.bool_], numbers: NDArray[np.float64], what: str, where: Where, right: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise InputError(f"{where(row)}: {what} is {numbers[row]:.15g}, it must be {right}")


@dataclass
class Rows:
    """What a reader found, in the file's order."""

    arrival_ns: Int
    prompt: Int
    output: Int
    session: Int | None = None
    parent: Int | None = None
    """row it waits for, −1: none"""
    think_ns: Int | None = None
    priority: Int | None = None
    blocks: Blocks | None = None
    notes: list[str] = field(default_factory=list)


def finish(rows: Rows, name: str, format: str, *, where: Where | None = None, clock: bool = True) -> Trace:
    """Rows → Trace: unusable rows dropped and counted, clocks unwrapped, rows sorted, the first arrival at 0.

    `clock`: arrivals are one recorded clock, whose jumps and disorder are worth a note.
    """
    notes = list(rows.notes)
    n = len(rows.arrival_ns)
    parent = np.full(n, -1, np.int64) if rows.parent is None else rows.parent
    think = np.zeros(n, np.int64) if rows.think_ns is None else rows.think_ns
    arrival = rows.arrival_ns
    roots = parent < 0
    if clock:
        arrival = arrival.copy()
        arrival[roots], said = _unwrap(arrival[roots])
        notes += said

    keep = rows.prompt > 0
    dropped = {}
    if not keep.all():
        failed = int((~keep & (rows.output == 0)).sum())
        dropped = {k: v for k, v in (("failed", failed), ("empty_prompt", int((~keep).sum()) - failed)) if v}
        parent, think = _bridge(parent, think, keep)

    if (parent < 0).all():
        depth = np.zeros(n, np.int64)
    else:
        arrival, depth = _follow(arrival, parent, think, where)
    order = np.flatnonzero(keep)
    if (np.diff(arrival[order]) < 0).any() or (depth > 0).any():
        if clock and (np.diff(arrival[roots & keep]) < 0).any():
            notes.append("arrivals were not in order: sorted")
        order = order[np.lexsort((order, depth[order], arrival[order]))]
    position = np.full(n + 1, -1, np.int64)  # the last entry is where parent −1 points
    position[order] = np.arange(len(order))

    def ordered(column: Int | None) -> Int | None:
        return None if column is None else column[order]

    extra: dict[str, object] = {}
    if rows.blocks is not None and len(rows.blocks.ids):
        extra, said = _blocks(rows.blocks.take(order), rows.prompt[order], rows.output[order])
        notes += said
    arrival = arrival[order]
    return make_trace(
        name,
        format,
        arrival - arrival[0] if len(arrival) else arrival,
        rows.prompt[order],
        rows.output[order],
        session=ordered(rows.session),
        parent=position[parent[order]],
        after_parent_ns=think[order],
        priority=ordered(rows.priority),
        dropped=dropped,
        notes=tuple(notes),
        **extra,
    )


def _unwrap(clock: Int) -> tuple[Int, list[str]]:
    """A clock that restarts goes on where it was. A file in no order at all is no restarting clock."""
    back = np.flatnonzero(np.diff(clock) < -_HOUR_NS)
    if not len(back) or len(back) > max(1, len(clock) // 100):
        return clock, []
    jumps = np.zeros(len(clock), np.int64)
    jumps[back + 1] = clock[back] - clock[back + 1]
    often = "once" if len(back) == 1 else f"{len(back)} times"
    note = f"the clock jumped back by more than an hour {often}: unwrapped, it goes on where it was"
    return clock + np.cumsum(jumps), [note]


def _bridge(parent: Int, think: Int, keep: NDArray[np.bool_]) -> tuple[Int, Int]:
    """Children of a dropped row wait for its parent, with both think times."""
    parent, think = parent.copy(), think.copy()
    while len(lost := np.flatnonzero((parent >= 0) & ~keep[parent])):
        think[lost] += think[parent[lost]]
        parent[lost] = parent[parent[lost]]
    return parent, think


def _follow(arrival: Int, parent: Int, think: Int, where: Where | None) -> tuple[Int, Int]:
    """Expected arrivals of rows with a parent (never before it), and each row's depth in its chain."""
    arrival = arrival.copy()
    depth = np.full(len(arrival), -1, np.int64)
    by_parent = np.argsort(parent, kind="stable")
    first = np.searchsorted(parent[by_parent], np.arange(len(arrival) + 1))
    level = np.flatnonzero(parent < 0)
    step = 0
    while len(level):
        depth[level] = step
        counts = first[level + 1] - first[level]
        begin = np.repeat(first[level] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        level = by_parent[begin + np.arange(counts.sum())]
        before = arrival[parent[level]]
        arrival[level] = np.where(arrival[level] == UNKNOWN, before + think[level], np.maximum(arrival[level], before))
        step += 1
    if (depth < 0).any():
        row = int((depth < 0).argmax())
        place = where(row) if where else f"row {row}"
        raise InputError(f"{place}: its parents form a circle, a chain must begin somewhere")
    return arrival, depth


def _blocks(blocks: Blocks, prompt: Int, output: Int) -> tuple[dict[str, object], list[str]]:
    merged, chained = merge(blocks, prompt)
    columns: dict[str, object] = {
        "block_ids": merged.ids, "block_start": merged.start, "block_end": merged.ends,
        "block_size": merged.size, "block_rule": merged.rule,
    }  # fmt: skip
    return columns, [] if chained else ["block ids were those of contents, not of prefixes: chained"]
