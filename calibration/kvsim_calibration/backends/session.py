"""The loop: visits to cases in turn, each on disk before the next, until all are made or the budget is spent.

A case is visited several times, far apart, and its time is made of all visits (measured.py): what else ran on the
machine for some seconds spoils one visit of many cases, not all of one. Cases of one level come in a scattered order
for the same reason. Coarse levels come first, and their second visit before the third level's first. How many visits
there are is the backend's to say: on a machine that is shared, many short ones."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvsim.errors import InputError
from kvsim_calibration.backends.cases import Case, Lost
from kvsim_calibration.backends.clock import Timing
from kvsim_calibration.backends.store import Store

LEVELS_A_VISIT = 1.5
"""levels that a further visit is put behind"""


class Run(Protocol):
    """A backend."""

    visits: int
    """to a case, at most"""

    def time(self, case: Case) -> dict[str, Timing]:
        """Column → timing of one visit. Raises RuntimeError for a case that does not run on the device, Lost where no
        other will after it."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session did."""

    made: int
    """visits of this session"""
    left: int
    """visits that the budget had no time for"""


def order(cases: Sequence[Case], visits: int) -> list[tuple[Case, int]]:
    """(case, visit) in the order in which they are made."""
    made = [(case, visit) for case in cases for visit in range(visits)]
    return sorted(made, key=lambda at: (at[0].level + LEVELS_A_VISIT * at[1], at[0].family != "ceiling",
                                          zlib.crc32(at[0].name.encode())))


def measure(cases: Sequence[Case], run: Run, store: Store, seconds: float,
            tell: Callable[[str, float, float], None] = lambda text, done, total: None) -> Outcome:
    """Make the visits that the store lacks, for about `seconds`. `tell(case, seconds so far, seconds in all)`."""
    done = {(row["case"], row["visit"]) for row in store.rows}
    failed = {row["case"] for row in store.rows if "failed" in row}
    todo = [(case, visit) for case, visit in order(cases, run.visits) if (case.name, visit) not in done]
    began, made = time.monotonic(), 0
    for at, (case, visit) in enumerate(todo):
        so_far = time.monotonic() - began
        if so_far >= seconds:
            return Outcome(made, len(todo) - at)
        whole = so_far / max(1, made) * len(todo) if made else seconds
        tell(case.name, so_far, min(seconds, whole))
        if case.name not in failed and "failed" in visited(case, visit, run, store):
            failed.add(case.name)
        made += 1
    return Outcome(made, 0)


def visited(case: Case, visit: int, run: Run, store: Store) -> dict[str, Any]:
    """Time a case, put its raw row on disk, return it. One that does not run is put down as failed.

    Raises InputError where the device is lost with it."""
    row: dict[str, Any] = {"case": case.name, "visit": visit, "family": case.family, **case.values}
    try:
        timings = run.time(case)
    except RuntimeError as error:  # out of memory, or no such operator on this device
        row["failed"] = str(error).splitlines()[0][:200]
        if isinstance(error, Lost):
            store.add(row)
            raise InputError(f"{row['failed']}, at {case.name}: the rows are kept, go on with --resume") from None
    else:
        row.update({column: timing.median for column, timing in timings.items()})
        row.update({f"{column}_p20": timing.p20 for column, timing in timings.items() if column != "ns"})
        row.update(p20=timings["ns"].p20, p80=timings["ns"].p80, samples=timings["ns"].samples)
    store.add(row)
    return row
