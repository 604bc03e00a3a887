"""A trace: requests in order of arrival, held in columns so that a million of them stay small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]

FORK = -1
"""as `after_parent_ns`: the row is a further answer to its parent's prompt (parallel sampling) and arrives with it"""
BlockRule = Literal["ceil", "floor", "extent"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as a row of a Trace. Token counts; times in nanoseconds from the trace's start."""

    id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    session: int = -1
    """conversation it belongs to; -1: none"""
    parent: int = -1
    """row of the request whose end it waits for; -1: it arrives by the clock"""
    after_parent_ns: int = 0
    """think time: arrival = the parent's last token + this; FORK: another answer to the parent's prompt"""
    priority: int = 0
    """smaller is more urgent"""
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in columns, one row a request, in order of arrival; the first arrives at 0.

    A row with a parent arrives when its parent has ended, `after_parent_ns` later; its `arrival_ns` is then only the
    recorded or expected time, used for order and statistics. A parent stands before its children.

    Block ids say which requests begin alike. They are *chained*: an id stands for its block and all before it, so equal
    ids mean equal prefixes. `block_ids[block_start[i]:block_start[i + 1]]` are those of row i, dense integers from 0.
    Block j of a row covers the tokens from the end of block j − 1 to `block_end[block_start[i] + j]`. Readers fill
    `block_end` always: they merge blocks that never occur apart, so one id may cover many of the file's blocks
    (`kvsim.trace.chain`). Where it is None, block j ends at (j + 1) · block_size, with rule `ceil` at the prompt's end
    at the latest. `block_size` and `block_rule` describe the file: `ceil` gives the prompt's last, partial block an id
    (Mooncake), `floor` gives it none (Claude Code), `extent` has blocks of unequal length (RAGPulse's components).
    Ids may go on into the output where the answer's lineage is known (a follow-up that repeats it); tokens without an
    id are private to their request.
    """

    name: str
    format: str
    arrival_ns: Int
    prompt_tokens: Int
    output_tokens: Int
    session: Int
    parent: Int
    after_parent_ns: Int
    priority: Int
    block_size: int = 0
    """tokens a block of the file covers; 0: the trace has no ids, or ids of unequal blocks"""
    block_rule: BlockRule = "ceil"
    block_ids: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    block_start: Int = field(default_factory=lambda: np.zeros(1, np.int64))
    """length n + 1 where there are ids"""
    block_end: Int | None = None
    """the token count of its row at which each block ends, parallel to block_ids"""
    dropped: dict[str, int] = field(default_factory=dict)
    """rows that were readable but unusable, by reason"""
    notes: tuple[str, ...] = ()
    """what the reader did to the file: sorted it, unwrapped a clock, …"""

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def __getitem__(self, row: int) -> Request:
        return Request(
            id=row,
            arrival_ns=int(self.arrival_ns[row]),
            prompt_tokens=int(self.prompt_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            session=int(self.session[row]),
            parent=int(self.parent[row]),
            after_parent_ns=int(self.after_parent_ns[row]),
            priority=int(self.priority[row]),
            block_ids=tuple(self.blocks(row).tolist()),
        )

    def __iter__(self) -> Iterator[Request]:
        return (self[row] for row in range(len(self)))

    def blocks(self, row: int) -> Int:
        """Block ids of one row, int64."""
        if not self.has_ids:
            return self.block_ids[:0]
        return self.block_ids[self.block_start[row] : self.block_start[row + 1]]

    def ends(self, row: int) -> Int:
        """Token count at which each block of one row ends, int64, parallel to `blocks(row)`, increasing."""
        if not self.has_ids:
            return self.block_ids[:0]
        first, last = self.block_start[row], self.block_start[row + 1]
        if self.block_end is not None:
            return self.block_end[first:last]
        ends = np.arange(1, last - first + 1, dtype=np.int64) * self.block_size
        return np.minimum(ends, self.prompt_tokens[row]) if self.block_rule == "ceil" else ends

    def all_ends(self) -> Int:
        """`ends` of all rows, parallel to `block_ids`."""
        if self.block_end is not None:
            return self.block_end
        return np.concatenate([self.block_ids[:0], *(self.ends(row) for row in range(len(self)))])

    @property
    def has_ids(self) -> bool:
        """Whether any request says what its prompt begins with."""
        return len(self.block_ids) > 0

    def with_columns(self, **columns: object) -> Trace:
        """A copy with some fields replaced."""
        return replace(self, **columns)  # type: ignore[arg-type]


def make_trace(
    name: str,
    format: str,
    arrival_ns: object,
    prompt_tokens: object,
    output_tokens: object,
    *,
    session: object = None,
    parent: object = None,
    after_parent_ns: object = None,
    priority: object = None,
    **rest: object,
) -> Trace:
    """A Trace from anything array-like; columns that are left out get their neutral value."""
    arrival = np.asarray(arrival_ns, np.int64)
    n = len(arrival)

    def column(values: object, neutral: int) -> Int:
        return np.full(n, neutral, np.int64) if values is None else np.asarray(values, np.int64)

    return Trace(
        name=name,
        format=format,
        arrival_ns=arrival,
        prompt_tokens=np.asarray(prompt_tokens, np.int64),
        output_tokens=np.asarray(output_tokens, np.int64),
        session=column(session, -1),
        parent=column(parent, -1),
        after_parent_ns=column(after_parent_ns, 0),
        priority=column(priority, 0),
        **rest,  # type: ignore[arg-type]
    )
