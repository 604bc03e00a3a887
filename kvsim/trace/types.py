"""A trace: requests in order of arrival, held in columns so that a million of them stay small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
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
    """think time: arrival = the parent's last token + this"""
    priority: int = 0
    """smaller is more urgent"""
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in columns, one row a request, in order of arrival (rows with a parent: in order of their chain).

    Block ids say which prompts begin alike. They are *chained*: an id stands for its block and all before it, so equal
    ids mean equal prefixes. `block_ids[block_start[i]:block_start[i + 1]]` are those of row i; block j ends at token
    min((j + 1) · block_size, prompt + output). With rule `ceil` the last, partial block of a prompt has an id
    (Mooncake), with `floor` it has none (Claude Code), with `extent` block j ends at `block_end[...]` tokens (RAGPulse's
    components of unequal length). Ids may go on into the output where the answer's lineage is known (a follow-up that
    repeats it); tokens without an id are private to their request.
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
    """tokens a block id covers; 0: the trace has no ids"""
    block_rule: BlockRule = "ceil"
    block_ids: Int = field(default_factory=lambda: np.zeros(0, np.int64))
    block_start: Int = field(default_factory=lambda: np.zeros(1, np.int64))
    """length n + 1 where there are ids"""
    block_end: Int | None = None
    """rule `extent`: the token count at which each block ends, parallel to block_ids"""
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
        if not self.block_size and self.block_end is None:
            return self.block_ids[:0]
        return self.block_ids[self.block_start[row] : self.block_start[row + 1]]

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
