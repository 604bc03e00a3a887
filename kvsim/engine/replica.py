"""One replica of a serving engine as a SimPy process: plan, let the step's time pass, apply its results, repeat.

Several decode steps that nothing can interrupt are one *stride*: their times come from one call of the cost model and
SimPy sees one event. Nothing is committed before a stride ends, so an arrival that nobody foresaw only shortens it.
A replica that is alone on the clock, all its arrivals known, need not even meet SimPy between two idle times, but
while it waits for its link.
Step mode is the same loop with `max_stride = 1`, and gives the same Result to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Generator
from itertools import accumulate
from typing import Any

import simpy

from kvsim.cache.base import Allocator, Sequence
from kvsim.cache.tier import NO_TIER, Tier
from kvsim.cache.tiered import Tiered
from kvsim.cost.model import SCALAR_RUN
from kvsim.cost.shape import StepShape
from kvsim.engine.decode_set import NEVER, DecodeSet, ended_by
from kvsim.engine.interfaces import Source, StepCost
from kvsim.engine.link import Link
from kvsim.engine.sampling import sample
from kvsim.engine.shapes import add_chunks, decode_shape, uncached_shape
from kvsim.record import Recorder
from kvsim.sched.base import Limits, Plan, Scheduler, State, admission


class Replica:
    """A scheduler, a cache and a cost model on one clock."""

    def __init__(
        self,
        env: simpy.Environment,
        *,
        scheduler: Scheduler,
        limits: Limits,
        kv: Allocator,
        cost: StepCost,
        windows: tuple[int, ...],
        source: Source,
        recorder: Recorder,
        tier: Tier = NO_TIER,
        asynchronous: bool = False,
        max_stride: int = NEVER,
        index: int = 0,
        watch: Callable[[Replica, Plan], None] | None = None,
    ) -> None:
        """`windows`: tokens that each group of layers attends (0: all). `asynchronous`: a step is planned while the one
        before it runs, so that whoever arrives meanwhile, or waits for what that step frees, acts one step later (vLLM
        from 0.19 on). `watch` sees every plan before its time passes (for recordings; it needs max_stride = 1)."""
        self.env = env
        self.scheduler = scheduler
        self.kv = kv
        self.cost = cost
        self.source = source
        self.record = recorder
        self.index = index
        self.decode = DecodeSet(windows)
        self.state = State(self.decode, kv, limits, max_stride)
        self.link = Link(env, tier)
        self.now = 0
        """the replica's own time: ahead of the clock it shares only where nobody else looks at that"""
        self._pace = 1
        """ns of a recent decode step"""
        self._lag = asynchronous
        self._planned = 0
        """when the coming step was planned: now, or when the step before it began"""
        self._held = False
        """whether the coming step was planned before the latest requests ended"""
        self._ready: list[Sequence] = []
        """their tokens have come over the link since the latest step began"""
        self._flight: list[int] = []
        """when the steps of the stride in flight end, where others look at the clock meanwhile …"""
        self._shape = StepShape()
        """… and its first step"""
        self._wake: simpy.Event | None = None
        """what an idle replica, or a stride that may be cut short, waits for"""
        self._gave_way: tuple[Sequence, int] | None = None
        """who gave way last with nobody else running, and the tokens it had had; None: a request has ended since"""
        self._watch = watch
        # most caches copy nothing and have no second tier: then they need not be asked before every step
        self._copies = kv.copies
        self._retention = kv.retention
        self._transfers = type(kv).take_transfers is not Allocator.take_transfers
        self._alone = not source.surprises
        """nobody looks at the shared clock but what comes over the link"""

    def run(self) -> Generator[simpy.Event, Any, None]:
        env, state, source, record, cost = self.env, self.state, self.source, self.record, self.cost
        alone, chunkable, schedule = self._alone, self.kv.chunkable, self.scheduler.plan
        self.now = int(env.now)
        while True:
            now = self.now
            planned = self._planned if self._lag else now
            if source.next_ns <= planned:
                self._arrivals(planned)
            if self._ready:
                self._resume()
            if self._held:
                state.blocked = True
            plan = schedule(state)
            if self._held:
                self._held = state.blocked = False
                plan.steps = min(plan.steps, 1)
            if self._watch is not None:
                self._watch(self, plan)
            for seq in plan.admitted:
                record.admit(seq, now)
            if self._transfers:
                self._send(now)
            if plan.chunks or (plan.steps and not chunkable):
                shape, tokens = self._one_step(plan)
                self.now = now + cost.step(shape)
                if state.loading or not alone:
                    yield env.timeout(self.now - int(env.now))
                self._planned = now
                self._commit_step(plan, shape, tokens, now)
            elif plan.steps:
                shape, ends = self._stride(plan, now)
                if state.loading or not alone:
                    self._flight, self._shape = ends, shape
                    if len(ends) > 1 and (state.loading or (plan.open and source.surprises)):
                        yield from self._pass_until_woken(ends, now)
                    else:
                        yield env.timeout(ends[-1] - int(env.now))
                    self._flight = []
                self.now = ends[-1]
                self._commit_stride(plan, shape, ends, now)
                self._planned = ends[-2] if len(ends) > 1 else now
            elif planned < now or plan.preempted:
                self._planned = now  # nothing to run: plan with all that has come
                if plan.preempted and not state.running():
                    self._had_all(plan.preempted[-1])
            elif state.waiting and not plan.admitted and not state.running():
                source.refused(state.waiting.take(), "never_fits")  # alone, and still no room
                state.blocked = False
            else:
                event = self._idle()
                if event is None:
                    return
                yield event
                self.now = self._planned = int(env.now)
                self._sample(self.now - 1)

    def _had_all(self, seq: Sequence) -> None:
        """`seq` had all the memory there is and still gave way. Where that was so before at the same token, and nobody
        has ended since, it would happen for ever: it is refused."""
        before, self._gave_way = self._gave_way, (seq, seq.generated)
        if before == self._gave_way and self.state.waiting.head() is seq:
            self.source.refused(self.state.waiting.take(), "never_fits")

    def _idle(self) -> simpy.Event | None:
        """What to wait for when nothing can run; None: nothing will come."""
        until = self.source.next_ns
        known = self.env.timeout(until - int(self.env.now)) if until < NEVER else None
        if not self.state.loading:
            return known or self.source.wait()
        self._wake = self.env.event()
        return known | self._wake if known else self._wake

    # -- a second tier ----------------------------------------------------------------------------------------------

    def _send(self, now: int) -> None:
        for transfer in self.kv.take_transfers():
            self.link.send(transfer.bytes, now, self._when_over(transfer.seq))

    def _advance(self, ends: list[int], at: int, steps: int) -> None:
        """The cache takes `steps` steps from the `at`-th on of those that end at `ends`. What a step sends over the
        link leaves when it ends (the last one's with the next plan)."""
        if not self._transfers:
            self.kv.advance(steps)
            return
        for step in range(at, at + steps):
            self.kv.advance(1)
            if step + 1 < len(ends):
                self._send(ends[step])

    def _when_over(self, seq: Sequence | None) -> Callable[[], None] | None:
        """What to do when a transfer is over."""
        if seq is None:
            return None

        def arrived() -> None:
            self._ready.append(seq)
            self.wake()

        return arrived

    def wake(self) -> None:
        """Something has come that nobody foresaw: look at it after the step in flight."""
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def _resume(self) -> None:
        """Sequences whose tokens have arrived run on: with the rest of their prompt, or with their next token."""
        for seq in self._ready:
            self.state.loading -= 1
            self.state.run(seq)
            if seq.generated and seq.pending == 1:
                self.state.partial.remove(seq)
                self.join(seq)
        self._ready.clear()

    def join(self, seq: Sequence) -> None:
        """`seq` has one pending token: it decodes from the coming step on."""
        seq.base = seq.computed - self.decode.step
        self.kv.join(seq)
        self.decode.join(seq)

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def _arrivals(self, now: int) -> None:
        """Queue what has arrived by `now`."""
        for seq in self.source.take(now):
            if self.kv.never_fits(seq):
                self.source.refused(seq, "never_fits")
                continue
            self.state.waiting.arrive(seq)
            if self.state.limits.priority:
                self.state.blocked = False

    # -- steps ------------------------------------------------------------------------------------------------------

    def _one_step(self, plan: Plan) -> tuple[StepShape, int]:
        """A step with prefill chunks (or without a cache) runs alone, to its end: (its shape, prefill tokens)."""
        kv, decode = self.kv, self.decode
        if plan.steps and not plan.taken:
            kv.advance(1)
        if kv.chunkable:
            shape = decode_shape(decode, self._retention, len(self.state.lingering)) if plan.steps else StepShape()
            tokens = add_chunks(shape, plan.chunks, self._retention, decode)
        else:
            shape = uncached_shape(decode, plan.steps, plan.chunks)
            tokens = sum(count for _, count, _ in plan.chunks)
        if self._copies:
            shape.moved_bytes = kv.take_moved_bytes()
        return shape, tokens

    def _commit_step(self, plan: Plan, shape: StepShape, tokens: int, start: int) -> None:
        """The step of `_one_step` has ended."""
        record, decode, now = self.record, self.decode, self.now
        record.engine_steps += 1
        record.prefill_tokens += tokens
        if not self.kv.chunkable:
            record.decode_tokens += shape.tokens - tokens
        else:
            record.decode_tokens += shape.decode - (len(self.state.lingering) if plan.steps else 0)
        attended = shape.attended[0] if shape.attended else 0
        record.step(start, now, 1, self.index, shape.decode, len(shape.chunks), tokens, attended)
        done: list[Sequence] = []
        if plan.steps:
            record.tokens(now, decode.tokens(now))
            done += decode.advance(1)
        if now >= record.next_sample:
            self._sample(now)
        done += sample(self, plan, now)
        if done:
            self._finish(done, now)
        self.state.blocked = False  # what was computed may be a prefix that the head of the queue can use

    def _stride(self, plan: Plan, start: int) -> tuple[StepShape, list[int]]:
        """Up to `plan.steps` decode steps of the same sequences: (the first one's shape, when each ends)."""
        kv, cost = self.kv, self.cost
        shape = decode_shape(self.decode, self._retention, len(self.state.lingering))
        if self._copies:
            shape.moved_bytes = kv.take_moved_bytes()
        until = self.source.next_ns if plan.open else NEVER
        steps = plan.steps
        if steps > 1 and until < NEVER:  # a guess at how many reach it: where it is too low, another stride follows
            steps = min(steps, max(1, (until - start) // self._pace + 2 + self._lag))
        if steps == 1:
            ends = [start + cost.step(shape)]
            if not plan.taken:
                kv.advance(1)
                plan.taken = 1
            return shape, ends
        if steps <= SCALAR_RUN:
            ends = list(accumulate(cost.short_run(shape, steps), initial=start))
            del ends[0]
        else:
            ends = (start + cost.decode_run(shape, steps).cumsum()).tolist()
        self._pace = ends[0] - start or 1
        if until < ends[-1]:
            self._cut(ends, start, until)
        return shape, ends

    def _cut(self, ends: list[int], start: int, arrival: int) -> None:
        """Keep the steps up to the plan that sees an `arrival`. (What comes over the link counts in the next plan.)"""
        step = bisect_left(ends, arrival)
        if self._lag and arrival > start and not self._ready:
            step += 1
        del ends[step + 1 :]

    def _commit_stride(self, plan: Plan, shape: StepShape, ends: list[int], start: int) -> None:
        """The steps of `_stride` that ended at `ends` have been taken."""
        record, decode, steps, end = self.record, self.decode, len(ends), self.now
        self._record_stride(shape, ends, start)
        if end >= record.next_sample:
            done = self._look(start, ends, plan.taken)
        else:
            if steps > plan.taken:
                self._advance(ends, plan.taken, steps - plan.taken)
            done = decode.advance(steps)
        if done:
            if self._lag:
                self._catch_up(start, ends, steps)
            self._finish(list(done), end)

    def _record_stride(self, shape: StepShape, ends: list[int], start: int) -> None:
        decode = self.decode
        before = decode.tokens(ends[-1])
        self.record.decoded(start, ends, self.index, decode.count, shape.attended[0], before)

    def halt(self) -> None:
        """It is gone: record the steps that have ended of the stride in flight."""
        if ended := ended_by(self._flight, int(self.env.now)):
            self._record_stride(self._shape, ended, self.now)

    def _pass_until_woken(self, ends: list[int], start: int) -> Generator[simpy.Event, Any, None]:
        """Let steps that end at `ends` pass. Where something arrives meanwhile the step in flight runs to its end, and
        the rest, which never began, are taken off the list."""
        self._wake = self.env.event()
        yield self.env.timeout(ends[-1] - int(self.env.now)) | self._wake
        now = int(self.env.now)
        if now < ends[-1]:
            self._cut(ends, start, now)
            yield self.env.timeout(ends[-1] - now)

    def _look(self, start: int, ends: list[int], taken: int) -> list[Sequence]:
        """Commit decode steps from `start` on that end at `ends`, of which the cache knows `taken`, and sample the
        state after each step that reaches a grid time. Returns the sequences that are done."""
        record, steps = self.record, len(ends)
        at = 0
        while record.next_sample <= ends[-1]:
            reach = bisect_left(ends, record.next_sample) + 1
            if reach > at + taken:
                self._advance(ends, at + taken, reach - at - taken)
            self.decode.advance(reach - at)
            at, taken = reach, 0
            self._catch_up(start, ends, reach)
            self._sample(ends[reach - 1])
        if steps > at + taken:
            self._advance(ends, at + taken, steps - at - taken)
        return self.decode.advance(steps - at)

    def _catch_up(self, start: int, ends: list[int], step: int) -> None:
        """Queue what had come when the `step`-th of the steps from `start` on that end at `ends` was planned."""
        if self._lag:
            step -= 1
        planned = ends[step - 2] if step > 1 else start if step == 1 else self._planned
        if self.source.next_ns <= planned:
            self._arrivals(planned)

    # -- results ----------------------------------------------------------------------------------------------------

    def _finish(self, done: list[Sequence], now: int) -> None:
        """These sequences have had their last token."""
        self._gave_way = None
        if len(done) > 1:
            done.sort(key=admission)  # the order in which an engine walks its running list
        state, kv = self.state, self.kv
        for seq in done:
            if seq.decoding:
                self.decode.leave(seq)
                kv.leave(seq)
            if self.scheduler.holds_batch:
                state.lingering.append(seq)
            else:
                state.release(seq, finished=True)
            self.record.complete(seq, now, self.index)
            self.source.ended(seq, now)
        state.blocked = False
        self._held = self._lag and bool(state.waiting)

    # -- what a cluster asks ------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.state.waiting)

    def cached(self, seq: Sequence) -> int:
        """Prompt tokens of `seq` in the prefix cache now."""
        return self.kv.match(seq)

    def receive(self, seq: Sequence) -> None:
        """`seq` will come with its prompt computed elsewhere: its cache waits at the other end of the link."""
        assert isinstance(self.kv, Tiered)
        self.kv.receive(seq, seq.prompt)

    def counters(self) -> dict[str, int]:
        """What the cache counted."""
        kv = self.kv
        moved = (getattr(kv, name, 0) for name in ("out_bytes", "in_bytes", "copied_in_bytes"))
        return {"evicted_blocks": getattr(kv, "evicted_blocks", 0), "swapped_bytes": sum(moved)}

    def _sample(self, until: int) -> None:
        state = self.state
        self.record.sample(until, self.index, state.running(), len(state.waiting), self.kv)
