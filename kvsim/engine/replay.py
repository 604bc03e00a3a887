"""A trace through one replica: the smallest whole simulation."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any, Protocol

import simpy

from kvsim.cache.base import Allocator, Sequence
from kvsim.cache.prefix import Part
from kvsim.cache.tier import NO_TIER, Tier
from kvsim.engine.arrivals import Arrivals
from kvsim.engine.decode_set import NEVER
from kvsim.engine.interfaces import StepCost
from kvsim.engine.replica import Replica
from kvsim.record import Recorder
from kvsim.sched.base import Limits, Plan, Scheduler
from kvsim.trace.types import Trace

Chains = Callable[[int], list[Part]]
"""row → what a prefix cache knows of its content"""


Stop = Callable[[Recorder, int], object]
"""(what is recorded, now) → something true where the rest of the run is not wanted; asked whenever a request ends"""


class Stopped(Exception):
    """The run ends here, by its `stop`."""


class TraceSource:
    """Feeds one replica from a trace, refuses what can never run, and lets follow-ups come when their parent ends."""

    surprises = False  # follow-ups only come after a step in which their parent ended

    def __init__(
        self,
        trace: Trace,
        recorder: Recorder,
        max_model_len: int,
        chains: Chains | None,
        progress: Callable[[int], None] | None,
        stop: Stop | None = None,
        forks: bool = False,
    ) -> None:
        self._arrivals = Arrivals(trace, forks)
        self.forks = forks
        self.next_ns = self._arrivals.next_ns
        self._record = recorder
        self._max_model_len = max_model_len
        self._chains = chains
        self._progress = progress
        self._stop = stop
        self._ended = 0
        self._prompt: list[int] = trace.prompt_tokens.tolist()
        self._output: list[int] = trace.output_tokens.tolist()
        self._priority: list[int] = trace.priority.tolist()

    def take(self, now: int) -> Iterable[Sequence]:
        arrivals = self._arrivals
        while arrivals.next_ns <= now:
            time, row = arrivals.pop()
            self.next_ns = arrivals.next_ns
            self._record.arrival_ns[row] = time
            seq = self._sequence(row)
            if seq.prompt + seq.output > self._max_model_len:
                self.refused(seq, "too_long")
            elif not seq.prompt:
                self.refused(seq, "empty_prompt")
            else:
                yield seq

    def _sequence(self, row: int) -> Sequence:
        chain = self._chains(row) if self._chains is not None else None
        return Sequence(row, self._prompt[row], self._output[row], self._priority[row], chain)

    def forked(self, seq: Sequence) -> list[Sequence]:
        """Further answers to the prompt of `seq`, which has just been computed."""
        found = [self._sequence(row) for row in self._arrivals.forked(seq.row)]
        for child in found:
            self._record.arrival_ns[child.row] = self._record.arrival_ns[seq.row]
        return found

    def ended(self, seq: Sequence, now: int) -> None:
        self._arrivals.ended(seq.row, now)
        self.next_ns = self._arrivals.next_ns
        self._count()
        if self._stop is not None and self._stop(self._record, now):
            raise Stopped

    def refused(self, seq: Sequence, reason: str) -> None:
        self._record.refuse(seq.row, reason)
        self._count()
        for row in self._arrivals.orphans(seq.row):  # they never arrive; the time that is known is their ancestor's
            self._record.arrival_ns[row] = self._record.arrival_ns[seq.row]
            self._record.refuse(row, "parent_refused")
            self._count()

    def wait(self) -> simpy.Event | None:
        return None  # all arrivals that are left follow from requests in flight, and none is

    def _count(self) -> None:
        self._ended += 1
        if self._progress is not None and self._ended % 256 == 0:
            self._progress(self._ended)


class Process(Protocol):
    """A replica: something that runs on the clock."""

    def run(self) -> Generator[simpy.Event, Any, None]: ...


def drive(
    trace: Trace,
    replica: Callable[[simpy.Environment, TraceSource, Recorder], Process],
    *,
    max_model_len: int = NEVER,
    chains: Chains | None = None,
    progress: Callable[[int], None] | None = None,
    stop: Stop | None = None,
    forks: bool = False,
) -> Recorder:
    """Run `trace` on one replica until nothing is left to do. Deterministic: the same input, the same nanoseconds.

    `chains`: what a prefix cache knows of a row's content; `progress` is told how many requests have ended;
    `stop` may end the run early, which then leaves requests as they are; `forks`: whether the engine forks further
    answers to a prompt off the first.
    """
    span = int(trace.arrival_ns.max() - trace.arrival_ns.min()) if len(trace) else 0
    recorder = Recorder(len(trace), span)
    source = TraceSource(trace, recorder, max_model_len, chains, progress, stop, forks)
    env = simpy.Environment(0)
    env.process(replica(env, source, recorder).run())
    with suppress(Stopped):
        env.run()
    return recorder


def replay(
    trace: Trace,
    *,
    scheduler: Scheduler,
    limits: Limits,
    kv: Allocator,
    cost: StepCost,
    windows: tuple[int, ...] = (0,),
    tier: Tier = NO_TIER,
    asynchronous: bool = False,
    max_stride: int = NEVER,
    watch: Callable[[Replica, Plan], None] | None = None,
    **how: Any,
) -> Recorder:
    """`drive` a Replica of these parts."""

    def replica(env: simpy.Environment, source: TraceSource, recorder: Recorder) -> Replica:
        return Replica(
            env, scheduler=scheduler, limits=limits, kv=kv, cost=cost, windows=windows, source=source,
            recorder=recorder, tier=tier, asynchronous=asynchronous, max_stride=max_stride, watch=watch,
        )

    return drive(trace, replica, **how)
