"""A trace through several replicas: arrivals, routing, hand-over from prefill to decode, failures, scaling.

A request is routed at the moment it arrives, before any engine acts at that time; so one replica behind a router does
what one replica alone does, to the nanosecond.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import simpy
from simpy.events import EventPriority

from kvsim.cache.base import Sequence
from kvsim.cluster.autoscale import Autoscale
from kvsim.cluster.failures import Failures, Outage
from kvsim.cluster.member import Build, Member
from kvsim.cluster.router import ROUTERS
from kvsim.engine.arrivals import Arrivals
from kvsim.engine.decode_set import NEVER
from kvsim.engine.replay import Chains, Stop, Stopped
from kvsim.record import Recorder
from kvsim.trace.types import Trace

URGENT = EventPriority(0)
"""what happens first at a time"""


@dataclass(frozen=True, slots=True)
class Kind:
    """`count` equal replicas."""

    count: int
    build: Build
    capacity: int
    """tokens of one's KV pool"""
    bite: int
    """tokens one computes in a step"""


@dataclass(frozen=True)
class Options:
    """How a cluster behaves."""

    router: str = "round-robin"
    decode: tuple[Kind, ...] = ()
    """replicas that only decode; the others then only prefill"""
    failures: Failures = field(default_factory=Failures)
    autoscale: Autoscale | None = None
    max_model_len: int = NEVER
    chains: Chains | None = None
    progress: Callable[[int], None] | None = None
    stop: Stop | None = None


class Cluster:
    """The Front of its members."""

    def __init__(self, trace: Trace, kinds: Many[Kind], options: Options) -> None:
        span = int(trace.arrival_ns.max() - trace.arrival_ns.min()) if len(trace) else 0
        self.env = simpy.Environment(0)
        self.record = Recorder(len(trace), span)
        self.options = options
        self.retried = self.lost = 0
        self._trace = trace
        self._arrivals = Arrivals(trace)
        self._router = ROUTERS.get(options.router)(trace)
        self._decode_router = ROUTERS.get("least-loaded")(trace)
        self._queue: deque[tuple[int, Sequence]] = deque()
        """waits for a replica: of a single queue, or where none is up"""
        self._ended = 0
        self._armed = NEVER
        self._columns = [column.tolist() for column in (trace.prompt_tokens, trace.output_tokens, trace.priority)]
        self.members: list[Member] = []
        self.decoders: list[Member] = []
        for group, of in ((self.members, kinds), (self.decoders, options.decode)):
            for kind in of:
                for _ in range(kind.count):
                    index = len(self.members) + len(self.decoders)
                    pulls = self._router.pulls and group is self.members
                    group.append(Member(self.env, index, kind.build, kind.capacity, kind.bite, self,
                                        self.record.part(), pulls))
        self.all = [*self.members, *self.decoders]
        self._able: list[Member] | None = None
        """members that are up; None: one came or went since it was made"""

    def run(self) -> tuple[Recorder, dict[str, int]]:
        """Run until nothing is left to do: what was recorded, and counters over all replicas."""
        scale = self.options.autoscale
        for number, member in enumerate(self.members):
            if scale is None or number < scale.least:
                member.start(0)
        self._able = None
        for member in self.decoders:
            member.start(0)
        for outage in self.options.failures.outages:
            self.env.process(self._outage(outage))
        if scale is not None:
            self.env.process(self._scale(scale))
        self._arm()
        with suppress(Stopped):
            self.env.run()
        end = max(self.record.last_token_ns, default=0)
        for _, seq in self._queue:  # nobody came back for them
            self._lose(seq)
        counters: dict[str, int] = {}
        for member in self.all:
            member.close(end)
            self.record.absorb(member.record)
            for name, value in member.counters().items():
                counters[name] = counters.get(name, 0) + value
        facts = {"retried": self.retried, "lost": self.lost, "replica_ns": sum(m.up_ns for m in self.all)}
        return self.record, {**counters, **facts}

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """See to it that the next arrival is dispatched at its time, before anything else happens then."""
        at = self._arrivals.next_ns
        if at < self._armed:
            self._armed = at
            event = simpy.Event(self.env)
            event._ok, event._value = True, None
            event.callbacks.append(lambda _: self.dispatch())
            self.env.schedule(event, URGENT, max(0, at - int(self.env.now)))

    def due_ns(self) -> int:
        """Time of an arrival that is to be dispatched now: of follow-ups whose parents have just ended, which wait for
        the engine to end all that end with them."""
        at = self._arrivals.next_ns
        return at if at <= self.env.now else NEVER

    def dispatch(self) -> None:
        """Route everything that has arrived by now, in order of arrival."""
        now = int(self.env.now)
        if now >= self._armed:
            self._armed = NEVER
        while self._arrivals.next_ns <= now:
            at, row = self._arrivals.pop()
            self.record.arrival_ns[row] = at
            seq = self._sequence(row)
            if seq.prompt + seq.output > self.options.max_model_len:
                self._refuse(seq, "too_long")
            elif seq.prompt == 0:
                self._refuse(seq, "empty_prompt")
            else:
                self._route(seq, now)
        self._arm()

    def _sequence(self, row: int) -> Sequence:
        prompt, output, priority = (column[row] for column in self._columns)
        chain = self.options.chains(row) if self.options.chains is not None else None
        return Sequence(row, prompt, min(output, 1) if self.decoders else output, priority, chain)

    def _route(self, seq: Sequence, now: int) -> None:
        able = self._able
        if able is None:
            able = self._able = [member for member in self.members if member.up]
        if self._router.pulls:
            self._queue.append((now, seq))
            idle = [member for member in able if member.idle]
            for member in idle[:1] or [member for member in able if member.hungry]:
                member.nudge()
        elif able:
            chosen = self._router.choose(seq, able)
            self.members[chosen.index].push(seq, now)
        else:
            self._queue.append((now, seq))

    # -- what members say -------------------------------------------------------------------------------------------

    def head_ns(self) -> int:
        return self._queue[0][0] if self._queue else NEVER

    def pull(self, member: Member, now: int) -> Sequence | None:
        return self._queue.popleft()[1] if self._queue and self._queue[0][0] <= now else None

    def ended(self, member: Member, seq: Sequence, now: int) -> None:
        if self.decoders and member.index < len(self.members) and self._columns[1][seq.row] > 1:
            self._hand_over(seq, now)
            return
        self._arrivals.ended(seq.row, now)
        self._count()
        self._retire(member)
        if self.options.stop is not None and self.options.stop(self.record, now):
            raise Stopped
        self._arm()

    def refused(self, member: Member, seq: Sequence, reason: str) -> None:
        self._refuse(seq, reason)
        self._retire(member)

    def _refuse(self, seq: Sequence, reason: str) -> None:
        self.record.refuse(seq.row, reason)
        self._count()
        for row in self._arrivals.orphans(seq.row):
            self.record.arrival_ns[row] = self.record.arrival_ns[seq.row]
            self.record.refuse(row, "parent_refused")
            self._count()

    def _count(self) -> None:
        self._ended += 1
        if self.options.progress is not None and self._ended % 256 == 0:
            self.options.progress(self._ended)

    # -- prefill and decode apart -----------------------------------------------------------------------------------

    def _hand_over(self, seq: Sequence, now: int) -> None:
        """The first token is there: a decoding replica fetches the prompt's cache over its link and goes on."""
        able = [member for member in self.decoders if member.up]
        if not able:
            self._lose(seq)
            return
        rest = Sequence(seq.row, seq.prompt, self._columns[1][seq.row], seq.priority, seq.chain)
        rest.generated, rest.last_token_ns = 1, now
        chosen = self._decode_router.choose(rest, able)
        self.all[chosen.index].push(rest, now, received=True)

    # -- failures ---------------------------------------------------------------------------------------------------

    def _outage(self, outage: Outage) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(outage.start_ns)
        member = self.all[outage.replica]
        if not member.alive:
            return
        self._able = None
        for seq in member.stop():
            if self.options.failures.retry:
                self.retried += 1
                self._route(self._sequence(seq.row), int(self.env.now))
            else:
                self._lose(seq)
        self._router.lost(member)
        if outage.end_ns is not None:
            yield self.env.timeout(outage.end_ns - outage.start_ns)
            self._begin(member, int(self.env.now))

    def _lose(self, seq: Sequence) -> None:
        self.lost += 1
        self.record.fail(seq.row, "replica_failed")
        self._count()
        for row in self._arrivals.orphans(seq.row):
            self.record.arrival_ns[row] = self.record.arrival_ns[seq.row]
            self.record.refuse(row, "parent_refused")
            self._count()

    def _begin(self, member: Member, paid_from: int) -> None:
        """`member` is there: it gets what nobody was there for."""
        member.start(paid_from)
        self._able = None
        if self._router.pulls or member.index >= len(self.members):
            return
        waiting, self._queue = self._queue, deque()
        for _, seq in waiting:
            self._route(seq, int(self.env.now))

    # -- scaling ----------------------------------------------------------------------------------------------------

    def _scale(self, scale: Autoscale) -> Generator[simpy.Event, Any, None]:
        """Look every so often, while there is work or more to come."""
        starting: set[int] = set()
        low_since: int | None = None
        while self._ended < len(self._trace):
            yield self.env.timeout(scale.every_ns)
            now = int(self.env.now)
            up = [member for member in self.members if member.up]
            wanted = scale.wanted(sum(m.requests for m in self.members) + len(self._queue))
            have = len(up) + len(starting)
            if wanted >= have:
                low_since = None
            elif low_since is None:
                low_since = now
            absent = [m for m in self.members if not m.alive and m.index not in starting]
            for member in absent[: max(0, wanted - have)]:
                starting.add(member.index)
                self.env.process(self._start_up(member, scale.startup_ns, starting))
            if low_since is not None and now - low_since >= scale.hold_ns:
                for member in up[::-1][: have - wanted]:
                    member.up, self._able = False, None
                    self._retire(member)

    def _start_up(self, member: Member, delay: int, starting: set[int]) -> Generator[simpy.Event, Any, None]:
        began = int(self.env.now)
        yield self.env.timeout(delay)
        starting.discard(member.index)
        self._begin(member, began)

    def _retire(self, member: Member) -> None:
        """A replica that is to go goes when it has nothing left."""
        if not member.up and member.alive and not member.requests:
            self.env.process(self._stop(member))

    def _stop(self, member: Member) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(0)  # its engine is in the middle of saying so
        if member.alive and not member.up and not member.requests:
            member.stop()
            self._router.lost(member)
