"""One replica of a cluster: its engine, the requests on their way into it, and what the router counts of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

import simpy

from kvsim.cache.base import Sequence
from kvsim.record import Recorder


class Engine(Protocol):
    """A Replica or an SglangReplica."""

    @property
    def queued(self) -> int: ...
    def wake(self) -> None: ...
    def cached(self, seq: Sequence) -> int: ...
    def counters(self) -> dict[str, int]: ...
    def receive(self, seq: Sequence) -> None: ...
    def run(self) -> Generator[simpy.Event, Any, None]: ...
    def halt(self) -> None: ...


class Front(Protocol):
    """What a member tells the cluster."""

    def ended(self, member: Member, seq: Sequence, now: int) -> None: ...
    def refused(self, member: Member, seq: Sequence, reason: str) -> None: ...
    def head_ns(self) -> int: ...
    def due_ns(self) -> int: ...
    def dispatch(self) -> None: ...
    def pull(self, member: Member, now: int) -> Sequence | None: ...


Build = Callable[[simpy.Environment, "Member", Recorder, int], Engine]
"""(env, source, recorder, index) → a fresh engine with an empty cache"""


class Member:
    """The Source of its engine."""

    forks = False
    surprises = True

    def __init__(self, env: simpy.Environment, index: int, build: Build, capacity: int, bite: int, front: Front,
                 record: Recorder, pulls: bool) -> None:
        """`capacity`: tokens of its KV pool; `bite`: prompt tokens it takes from a single queue at once."""
        self.env = env
        self.index = index
        self.capacity = capacity
        self.record = record
        self.requests = 0
        self.tokens = 0
        self.up = False
        """it is there and takes requests"""
        self.up_ns = 0
        """time it has been there (or starting, or finishing), up to the latest end"""
        self.in_flight: dict[int, Sequence] = {}
        self.counted: dict[str, int] = {}
        """counters of the engines that are gone"""
        self._build = build
        self._bite = bite
        self._front = front
        self._pulls = pulls
        self._inbox: deque[tuple[int, Sequence]] = deque()
        self._arrived: simpy.Event | None = None
        self._process: simpy.Process | None = None
        self._engine: Engine | None = None
        self._since = 0

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self, paid_from: int) -> None:
        """A fresh engine with an empty cache, paid for since `paid_from`."""
        self.up = True
        self._since = paid_from
        self._engine = self._build(self.env, self, self.record, self.index)
        self._process = self.env.process(self._run(self._engine))

    def _run(self, engine: Engine) -> Generator[simpy.Event, Any, None]:
        try:
            yield from engine.run()
        except simpy.Interrupt:
            return

    def stop(self) -> list[Sequence]:
        """It is gone; returns what it had in flight, in order of row."""
        lost = sorted(self.in_flight.values(), key=lambda seq: seq.row)
        if self._engine is not None and self._process is not None and self._process.is_alive:
            self._engine.halt()
            self._process.interrupt()
        for name, value in self._counters().items():
            self.counted[name] = self.counted.get(name, 0) + value
        self._process = self._engine = self._arrived = None
        self.up = False
        self.up_ns += int(self.env.now) - self._since
        self.in_flight.clear()
        self._inbox.clear()
        self.requests = self.tokens = 0
        return lost

    @property
    def alive(self) -> bool:
        return self._engine is not None

    def _counters(self) -> dict[str, int]:
        return {} if self._engine is None else self._engine.counters()

    def counters(self) -> dict[str, int]:
        """Of all its engines together."""
        now = self._counters()
        return {name: self.counted.get(name, 0) + now.get(name, 0) for name in {**self.counted, **now}}

    def close(self, now: int) -> None:
        """The run is over at `now`."""
        if self.alive:
            self.up_ns += max(0, now - self._since)

    # -- what the router sees ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._inbox) + (self._engine.queued if self._engine is not None else 0)

    def cached(self, seq: Sequence) -> int:
        probe = Sequence(seq.row, seq.prompt, seq.output, seq.priority, seq.chain)  # the cache remembers whom it found
        return 0 if self._engine is None else self._engine.cached(probe)

    def push(self, seq: Sequence, now: int, received: bool = False) -> None:
        """Send it `seq`; `received`: with its prompt's cache at the other end of the link."""
        self._count(seq)
        if received and self._engine is not None:
            self._engine.receive(seq)
        self._inbox.append((now, seq))
        self.nudge()

    def nudge(self) -> None:
        """There is something to take."""
        if self._arrived is not None and not self._arrived.triggered:
            self._arrived.succeed()
        if self._engine is not None:
            self._engine.wake()

    @property
    def idle(self) -> bool:
        return self._arrived is not None and not self._arrived.triggered

    def _count(self, seq: Sequence) -> None:
        self.in_flight[seq.row] = seq
        self.requests += 1
        self.tokens += seq.prompt

    def _forget(self, seq: Sequence) -> None:
        if self.in_flight.pop(seq.row, None) is not None:
            self.requests -= 1
            self.tokens -= seq.prompt

    # -- what its engine sees ---------------------------------------------------------------------------------------

    @property
    def hungry(self) -> bool:
        """It would take from a single queue."""
        return self.up and not self._inbox and self._engine is not None and not self._engine.queued

    @property
    def next_ns(self) -> int:
        if self._inbox:
            return self._inbox[0][0]
        due = self._front.due_ns()
        return min(due, self._front.head_ns()) if self._pulls and self.hungry else due

    def take(self, now: int) -> Iterable[Sequence]:
        if self._front.due_ns() <= now:
            self._front.dispatch()
        while self._inbox and self._inbox[0][0] <= now:
            yield self._inbox.popleft()[1]
        if not self._pulls or not self.hungry:
            return
        taken = 0
        while taken < self._bite:
            seq = self._front.pull(self, now)
            if seq is None:
                return
            self._count(seq)
            taken += seq.prompt
            yield seq

    def ended(self, seq: Sequence, now: int) -> None:
        self._forget(seq)
        self._front.ended(self, seq, now)

    def refused(self, seq: Sequence, reason: str) -> None:
        self._forget(seq)
        self._front.refused(self, seq, reason)

    def forked(self, seq: Sequence) -> list[Sequence]:
        return []

    def wait(self) -> simpy.Event | None:
        self._arrived = self.env.event()
        return self._arrived
