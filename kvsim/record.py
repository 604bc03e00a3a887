"""The Recorder: raw facts of a run, written by the engine and read when it has ended.

Everything is an int64 in a flat array, because a long run has millions of rows (those written at every step are packed
bytes: Python writes these four times as fast as it extends an array). Metrics are made of these later (metrics.py),
never here.
"""

from __future__ import annotations

from array import array
from struct import Struct
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
_pack_step = Struct(f"={len(STEP_COLUMNS)}q").pack
_pack_gap = Struct("=2q").pack
_GROWING = ("steps", "timeline", "maps", "_gaps", "_ends")
"""what is recorded beside requests"""
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
        self._about({name: array("q", (start.get(name, -1),)) * requests for name in REQUEST_COLUMNS}, [])
        self.steps = bytearray()
        self.timeline = array("q")
        self.maps = array("q")
        """who holds which bytes of the pool, at every MAP_EVERY-th sample"""
        self._gaps = bytearray()
        """(time between two tokens, sequences that saw that gap), but for gaps within a stride: these follow from …"""
        self._ends = array("q")
        """… when each step of a stride of several ended"""
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.recomputed_tokens = 0
        self.engine_steps = 0
        self.sample_every = 1 << max(25, (span_ns // (SAMPLES // 2)).bit_length())
        self.next_sample = 0
        """the timeline has one sample a grid time: the state at the end of the step that reaches it"""

    def _about(self, requests: dict[str, array[int]], reasons: list[str]) -> None:
        """Record in these columns, one row a request."""
        self.requests = requests
        self.arrival_ns = requests["arrival_ns"]
        self.scheduled_ns = requests["scheduled_ns"]
        self.first_token_ns = requests["first_token_ns"]
        self.last_token_ns = requests["last_token_ns"]
        self._status = requests["status"]
        self._replica = requests["replica"]
        self.reasons = reasons

    # -- replicas of a cluster ----------------------------------------------------------------------------------------

    def part(self) -> Recorder:
        """A recorder for one of several replicas: the same requests, its own steps, timeline and gaps."""
        other = Recorder(0, 0)
        other._about(self.requests, self.reasons)
        other.sample_every = self.sample_every
        return other

    def absorb(self, part: Recorder) -> None:
        """Take over what a part has recorded beside requests."""
        for name in _GROWING:
            getattr(self, name).extend(getattr(part, name))
            setattr(part, name, getattr(part, name)[:0])
        self.prefill_tokens += part.prefill_tokens
        self.decode_tokens += part.decode_tokens
        self.recomputed_tokens += part.recomputed_tokens
        self.engine_steps += part.engine_steps

    # -- requests ---------------------------------------------------------------------------------------------------

    def refuse(self, row: int, reason: str) -> None:
        self._end(row, REFUSED, reason)

    def admit(self, seq: Sequence, now: int) -> None:
        """`seq` is scheduled for the first time, or again after a preemption."""
        row = seq.row
        if self.scheduled_ns[row] < 0:
            self.scheduled_ns[row] = now
            if seq.cached:
                self.requests["cached_tokens"][row] = seq.cached

    def complete(self, seq: Sequence, now: int, replica: int) -> None:
        row = seq.row
        self.last_token_ns[row] = now
        self._replica[row] = replica
        self._status[row] = COMPLETED
        if seq.preemptions:
            self.requests["recomputed_tokens"][row] = seq.recomputed
            self.requests["preemptions"][row] = seq.preemptions

    def fail(self, row: int, reason: str) -> None:
        self._end(row, FAILED, reason)

    def _end(self, row: int, status: int, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
        self._status[row] = status
        self.requests["reason"][row] = self.reasons.index(reason)

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(
        self, start: int, end: int, steps: int, replica: int, decode: int, chunks: int, tokens: int, attended: int
    ) -> None:
        """One step, or one stride: `steps` steps of the same sequences in [start, end)."""
        self.steps += _pack_step(start, end, steps, replica, decode, chunks, tokens, attended)

    def decoded(
        self, start: int, ends: list[int], replica: int, decode: int, attended: int, before: dict[int, int]
    ) -> None:
        """A stride of decode steps of `decode` sequences from `start` on, which ended at `ends`; `before` is
        as in `tokens`."""
        steps = len(ends)
        self.engine_steps += steps
        self.decode_tokens += decode * steps
        self.step(start, ends[-1], steps, replica, decode, 0, 0, attended)
        self.tokens(ends[0], before)
        if steps > 1:
            self._ends.fromlist(ends)

    def gap(self, ns: int) -> None:
        """One sequence had a token `ns` after the one before."""
        self._gaps += _pack_gap(ns, 1)

    def tokens(self, now: int, before: dict[int, int]) -> None:
        """Sequences had a token at `now`; `before`: when they had the one before → how many of them."""
        for then, count in before.items():
            if count:
                self._gaps += _pack_gap(now - then, count)

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
        """(gaps, counts): the multiset of times between tokens."""
        gaps, counts = np.frombuffer(bytes(self._gaps), np.int64).reshape(-1, 2).T
        ends = np.frombuffer(self._ends.tobytes(), np.int64)
        if not len(ends):
            return gaps, counts
        columns = self.step_columns()
        strides = columns["steps"] > 1
        steps, sequences = columns["steps"][strides], columns["decode"][strides]
        within = np.ones(len(ends) - 1, dtype=bool)
        within[steps.cumsum()[:-1] - 1] = False  # from the last step of one stride to the first of the next
        return (
            np.concatenate([gaps, np.diff(ends)[within]]),
            np.concatenate([counts, np.repeat(sequences, steps - 1)]),
        )


def _every(flat: array[int], width: int, every: int) -> array[int]:
    """The rows whose first column is a multiple of `every`."""
    rows = np.frombuffer(flat, np.int64).reshape(-1, width)
    return array("q", rows[rows[:, 0] % every == 0].tobytes())


def _columns(flat: array[int] | bytearray, names: tuple[str, ...]) -> dict[str, Int]:
    rows = np.frombuffer(flat, np.int64).reshape(-1, len(names))
    return {name: np.ascontiguousarray(rows[:, column]) for column, name in enumerate(names)}
