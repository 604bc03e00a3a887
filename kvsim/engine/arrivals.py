"""When requests arrive: by the trace's clock, or a think time after the request they wait for has ended."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import numpy as np

from kvsim.engine.decode_set import NEVER
from kvsim.trace.types import FORK, Trace


class Arrivals:
    """Rows of a trace in order of arrival. A follow-up's arrival is known once its parent has ended.

    Further answers to a prompt arrive with the first, or, where the engine can fork (`forks`), are asked for by
    `forked` when the prompt has been computed.
    """

    def __init__(self, trace: Trace, forks: bool = False) -> None:
        self._children: dict[int, list[int]] = {}
        self._forks: dict[int, list[int]] = {}
        self._fork = forks
        self._think = trace.after_parent_ns
        waits = trace.parent >= 0
        for row in np.flatnonzero(waits).tolist():
            of = self._forks if self._think[row] == FORK else self._children
            of.setdefault(int(trace.parent[row]), []).append(row)
        roots = np.flatnonzero(~waits)
        order = roots[np.argsort(trace.arrival_ns[roots], kind="stable")]
        self._rows: list[int] = order.tolist()
        self._times: list[int] = trace.arrival_ns[order].tolist()
        self._at = 0
        self._rows.append(NEVER)
        self._times.append(NEVER)
        self._followups: list[tuple[int, int]] = []
        self.next_ns = self._times[0]
        """time of the next known arrival, or NEVER"""

    def pop(self) -> tuple[int, int]:
        """(time, row) of the next known arrival; ties go to the lower row."""
        at = self._at
        first = (self._times[at], self._rows[at])
        if self._followups and self._followups[0] < first:
            first = heappop(self._followups)
        else:
            self._at += 1
        if not self._fork:
            for row in self._forks.pop(first[1], ()):
                heappush(self._followups, (first[0], row))
        self._find_next()
        return first

    def forked(self, row: int) -> list[int]:
        """Further answers to the prompt of `row`, which has just been computed. Each is given once."""
        return self._forks.pop(row, [])

    def _find_next(self) -> None:
        self.next_ns = self._times[self._at]
        if self._followups:
            self.next_ns = min(self.next_ns, self._followups[0][0])

    def ended(self, row: int, now: int) -> None:
        """`row` has its last token: its follow-ups arrive after their think time."""
        for child in self._children.pop(row, ()):
            heappush(self._followups, (now + int(self._think[child]), child))
            self._find_next()

    def orphans(self, row: int) -> list[int]:
        """All rows that wait, directly or not, for `row`, which will never end. They will not arrive."""
        found: list[int] = []
        queue = deque((row,))
        while queue:
            parent = queue.popleft()
            children = self._children.pop(parent, []) + self._forks.pop(parent, [])
            found += children
            queue.extend(children)
        return found
