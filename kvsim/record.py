"""The Recorder: raw facts of a run, written by the engine and read when it has ended.

Everything is an int64 in a flat array, because a long run has millions of rows. Metrics are made of these later
(metrics.py), never here.
"""

from __future__ import annotations

import copy
from array import array
from itertools import repeat
from operator import sub
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.base import MemoryStats, Sequence

Int = NDArray[np.int64]

COMPLETED, REFUSED, FAILED = 0, 1, 2
"""as in result.STATUS"""

REQUEST_COLUMNS = (
    "arrival_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "status", "reason", "replica", "cached_tokens",
    "recomputed_tokens", "preemptions",
)
STEP_COLUMNS = ("start_ns", "end_ns", "steps", "replica", "decode", "chunks", "prefill_tokens", "attended")
TIMELINE_COLUMNS = (
    "t_ns", "replica", "running", "waiting", "used", "reserved", "internal", "cached", "external", "free",
    "shared_saved", "largest_free",
)
MAP_COLUMNS = ("t_ns", "replica", "start", "end", "row")
MAP_EVERY = 32
"""timeline samples to one memory map"""
SAMPLES = 4096
"""the timeline is thinned to every other sample when it would grow past this"""


class Memory(Protocol):
    """What the Recorder asks of a cache: Allocators, and whatever else has a pool."""

    def stats(self) -> MemoryStats: ...

    def memory_map(self) -> list[tuple[int, int, int]]: ...


class Recorder:
    """Columns of one run. Times in nanoseconds; −1 where a thing has not happened."""

    def __init__(self, requests: int, span_ns: int) -> None:
        start = {"status": FAILED, "cached_tokens": 0, "recomputed_tokens": 0, "preemptions": 0}
        self.requests: dict[str, array[int]] = {
            name: array("q", (start.get(name, -1),)) * requests for name in REQUEST_COLUMNS
        }
        self.arrival_ns = self.requests["arrival_ns"]
        self.scheduled_ns = self.requests["scheduled_ns"]
        self.first_token_ns = self.requests["first_token_ns"]
        self.last_token_ns = self.requests["last_token_ns"]
        self.reasons: list[str] = []
        self.steps = array("q")
        self.timeline = array("q")
        self.maps = array("q")
        """who holds which bytes of the pool, at every MAP_EVERY-th sample"""
        self._gaps = array("q")
        """time between tokens, and …"""
        self._gap_counts = array("q")
        """… how many sequences saw that gap"""
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.recomputed_tokens = 0
        self.engine_steps = 0
        self.sample_every = 1 << max(25, (span_ns // (SAMPLES // 2)).bit_length())
        self.next_sample = 0
        """the timeline has one sample a grid time: the state at the end of the step that reaches it"""

    # -- replicas of a cluster ----------------------------------------------------------------------------------------

    def part(self) -> Recorder:
        """A recorder for one of several replicas: the same requests, its own steps, timeline and gaps."""
        other = copy.copy(self)
        for name in ("steps", "timeline", "maps", "_gaps", "_gap_counts"):
            setattr(other, name, array("q"))
        return other

    def absorb(self, part: Recorder) -> None:
        """Take over what a part has recorded beside requests."""
        for name in ("steps", "timeline", "maps", "_gaps", "_gap_counts"):
            getattr(self, name).extend(getattr(part, name))
            setattr(part, name, array("q"))
        self.prefill_tokens += part.prefill_tokens
        self.decode_tokens += part.decode_tokens
        self.recomputed_tokens += part.recomputed_tokens
        self.engine_steps += part.engine_steps

    # -- requests ---------------------------------------------------------------------------------------------------

    def refuse(self, row: int, reason: str) -> None:
        self._end(row, REFUSED, reason)

    def admit(self, seq: Sequence, now: int) -> None:
        """`seq` is scheduled for the first time, or again after a preemption."""
        if self.scheduled_ns[seq.row] < 0:
            self.scheduled_ns[seq.row] = now
            self.requests["cached_tokens"][seq.row] = seq.cached

    def complete(self, seq: Sequence, now: int, replica: int) -> None:
        self.last_token_ns[seq.row] = now
        self.requests["replica"][seq.row] = replica
        self.requests["recomputed_tokens"][seq.row] = seq.recomputed
        self.requests["preemptions"][seq.row] = seq.preemptions
        self.requests["status"][seq.row] = COMPLETED

    def fail(self, row: int, reason: str) -> None:
        self._end(row, FAILED, reason)

    def _end(self, row: int, status: int, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.requests["status"][row] = status
        self.requests["reason"][row] = self.reasons.index(reason)

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(
        self, start: int, end: int, steps: int, replica: int, decode: int, chunks: int, tokens: int, attended: int
    ) -> None:
        """One stride: `steps` equal-shaped steps in [start, end)."""
        self.steps.extend((start, end, steps, replica, decode, chunks, tokens, attended))

    def gap(self, ns: int) -> None:
        """One sequence had a token `ns` after the one before."""
        self._gaps.append(ns)
        self._gap_counts.append(1)

    def gaps(self, gaps: list[tuple[int, int]]) -> None:
        """(ns, sequences that saw this gap) pairs."""
        for ns, count in gaps:
            self._gaps.append(ns)
            self._gap_counts.append(count)

    def gap_run(self, ends: list[int], count: int) -> None:
        """The same `count` sequences had tokens at all of `ends`."""
        self._gaps.extend(map(sub, ends[1:], ends))
        self._gap_counts.extend(repeat(count, len(ends) - 1))

    # -- timeline ---------------------------------------------------------------------------------------------------

    def sample(self, until: int, replica: int, running: int, waiting: int, kv: Memory) -> None:
        """The state that holds at every grid time up to `until`."""
        stats = kv.stats()
        while self.next_sample <= until:
            if self.next_sample % (MAP_EVERY * self.sample_every) == 0:
                for start, end, row in kv.memory_map():
                    self.maps.extend((self.next_sample, replica, start, end, row))
            self.timeline.extend((
                self.next_sample, replica, running, waiting, stats.used, stats.reserved, stats.internal, stats.cached,
                stats.external, stats.free, stats.shared_saved, stats.largest_free,
            ))
            self.next_sample += self.sample_every
            if len(self.timeline) >= SAMPLES * len(TIMELINE_COLUMNS):
                self._thin()

    def _thin(self) -> None:
        last = self.next_sample - self.sample_every
        self.sample_every *= 2
        self.timeline = _every(self.timeline, len(TIMELINE_COLUMNS), self.sample_every)
        self.maps = _every(self.maps, len(MAP_COLUMNS), MAP_EVERY * self.sample_every)
        self.next_sample = last // self.sample_every * self.sample_every + self.sample_every

    # -- reading ----------------------------------------------------------------------------------------------------

    def request_columns(self) -> dict[str, Int]:
        return {name: np.frombuffer(column, np.int64) for name, column in self.requests.items()}

    def step_columns(self) -> dict[str, Int]:
        return _columns(self.steps, STEP_COLUMNS)

    def timeline_columns(self) -> dict[str, Int]:
        return _columns(self.timeline, TIMELINE_COLUMNS)

    def map_columns(self) -> dict[str, Int]:
        return _columns(self.maps, MAP_COLUMNS)

    def itl(self) -> tuple[Int, Int]:
        """(gaps, counts): the multiset of times between tokens, in the order they happened."""
        return np.frombuffer(self._gaps, np.int64), np.frombuffer(self._gap_counts, np.int64)


def _every(flat: array[int], width: int, every: int) -> array[int]:
    """The rows whose first column is a multiple of `every`."""
    rows = np.frombuffer(flat, np.int64).reshape(-1, width)
    return array("q", rows[rows[:, 0] % every == 0].tobytes())


def _columns(flat: array[int], names: tuple[str, ...]) -> dict[str, Int]:
    rows = np.frombuffer(flat, np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(rows[:, column]) for column, name in enumerate(names)}
