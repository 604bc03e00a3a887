"""A replica that runs SGLang's scheduler (sched/sglang.py): extend or decode, never both in a step.

Decode steps that need no decision pass as one stride, as in replica.py: nothing is committed before it ends, so an
arrival that nobody foresaw only shortens it; steps one by one (`max_stride = 1`) give the same Result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from itertools import accumulate
from typing import Any

import simpy

from kvsim.cache.base import MemoryStats, Sequence
from kvsim.cache.radix import Key, same
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.cache.retention import FULL
from kvsim.cost.model import SCALAR_RUN
from kvsim.cost.shape import StepShape
from kvsim.engine.decode_set import NEVER, DecodeSet, ended_by
from kvsim.engine.interfaces import Source, StepCost
from kvsim.engine.shapes import decode_shape
from kvsim.record import Recorder
from kvsim.sched.sglang import Batch, Limits, Sglang


def content_key(seq: Sequence, page: int) -> Key:
    """One integer for each whole page of prompt and answer. Ids are chained: equal ones at one place mean that the
    content is equal up to there."""
    pages = (seq.prompt + seq.output) // page
    parts, known = [], 0
    for id, first, count in seq.chain or ():
        stop = min(first + count, pages)
        parts.append(same(id, stop - first))
        known = stop
    parts.append(same(-2 - seq.row, pages - known))
    return b"".join(parts)


class SglangReplica:
    """Scheduler, radix pool and cost model on one clock."""

    def __init__(
        self,
        env: simpy.Environment,
        *,
        pool: RadixPool,
        limits: Limits,
        token_bytes: int,
        cost: StepCost,
        windows: tuple[int, ...],
        source: Source,
        recorder: Recorder,
        max_stride: int = NEVER,
        index: int = 0,
    ) -> None:
        self.env = env
        self.pool = pool
        self.decode = DecodeSet(windows)
        self.engine = Sglang(pool, limits, self.decode)
        self.token_bytes = token_bytes
        self.cost = cost
        self.source = source
        self.record = recorder
        self.index = index
        self.now = 0
        """the replica's own time: ahead of the clock it shares only where nobody else looks at that"""
        self._max_stride = max_stride
        self._pace = 1
        """ns of a recent decode step"""
        self._flight: list[int] = []
        """when the steps end of a stride that passes and may be cut short"""
        self._wake: simpy.Event | None = None
        """what cuts it short"""
        self._silent: set[int] = set()
        """rows that ask for no token: they end with their prefill"""

    def run(self) -> Generator[simpy.Event, Any, None]:
        env, source, engine = self.env, self.source, self.engine
        self.now = int(env.now)
        while True:
            start = self.now
            if source.next_ns <= start:
                self._arrivals(start)
            batch = engine.schedule()
            for job in engine.retracted:
                job.peak = max(job.peak, job.tokens - 1)
            if batch is None:
                engine.apply(None)
                known = source.next_ns < NEVER
                event = env.timeout(source.next_ns - int(env.now)) if known else source.wait()
                if event is None:
                    return
                yield event
                self.now = int(env.now)
                self._sample(self.now - 1)
            elif batch.kind == "extend":
                shape = self._extend(batch)
                self.now += self.cost.step(shape)
                if source.surprises:
                    yield env.timeout(self.now - start)
                self._commit_extend(batch, shape, start)
            else:
                shape = decode_shape(self.decode, FULL, 0)
                ends = self._stride(batch, shape)
                if source.surprises:
                    yield from self._pass(ends)
                self.now = ends[-1]
                self._commit_decode(batch, shape, ends, start)

    # -- what a cluster asks ------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.engine.waiting)

    def wake(self) -> None:
        """Something has come that nobody foresaw: look at it after the step in flight."""
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def cached(self, seq: Sequence) -> int:
        """Prompt tokens of `seq` in the radix tree now."""
        if self._flight:  # of its steps, those after the first that have begun have evicted what they need
            self.pool.provide(bisect_left(self._flight, int(self.env.now)))
        return self.pool.tree.peek(content_key(seq, self.pool.page)) * self.pool.unit

    def receive(self, seq: Sequence) -> None:
        raise NotImplementedError("SGLang's replica takes no cache from elsewhere")

    def counters(self) -> dict[str, int]:
        """What the cache counted."""
        return {"evicted_blocks": self.pool.evicted // self.pool.page, "swapped_bytes": 0}

    def _arrivals(self, now: int) -> None:
        for seq in self.source.take(now):
            if not seq.output:
                self._silent.add(seq.row)
            job = Job(seq.row, seq.prompt, max(seq.output, 1), content_key(seq, self.pool.page), priority=-seq.priority)
            if self.engine.never_fits(job):
                self.source.refused(seq, "never_fits")
            else:
                self.engine.add(job)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _extend(self, batch: Batch) -> StepShape:
        chunks = tuple([(chunk.tokens, chunk.start) for chunk in batch.chunks])
        sampled = 0
        for job, start, tokens in batch.chunks:
            self.record.admit(job, self.now)
            sampled += start + tokens == job.tokens
        return StepShape(chunks=chunks, sampled=sampled)

    def _commit_extend(self, batch: Batch, shape: StepShape, start: int) -> None:
        """The step of `_extend` has ended."""
        record, now = self.record, self.now
        tokens = shape.tokens
        record.engine_steps += 1
        record.prefill_tokens += tokens
        record.step(start, now, 1, self.index, 0, len(shape.chunks), tokens, 0)
        for job, context, count in batch.chunks:
            if job.peak > context:
                again = min(job.peak, context + count) - context
                job.recomputed += again
                record.recomputed_tokens += again
            if job is not self.engine.chunked and job.row not in self._silent:
                if job.generated:
                    record.gap(now - job.last_token_ns)
                else:
                    record.first_token_ns[job.row] = now
                job.last_token_ns = now
        finished = self.engine.apply(batch)
        if now >= record.next_sample:
            self._sample(now)
        self._complete(finished)

    def _stride(self, batch: Batch, shape: StepShape) -> list[int]:
        """When each of up to `batch.steps` decode steps from now on ends, the first of them `shape`."""
        start, cost = self.now, self.cost
        steps = min(batch.steps, self._max_stride)
        if steps == 1:
            return [start + cost.step(shape)]
        until = self.source.next_ns if batch.open else NEVER
        if until < NEVER:  # a guess at how many reach it: where it is too low, another stride follows
            steps = min(steps, max(1, (until - start) // self._pace + 2))
        if steps <= SCALAR_RUN:
            ends = list(accumulate(cost.short_run(shape, steps), initial=start))
            del ends[0]
        else:
            ends = (start + cost.decode_run(shape, steps).cumsum()).tolist()
        self._pace = ends[0] - start or 1
        if until < ends[-1]:
            _cut(ends, until)
        return ends

    def _pass(self, ends: list[int]) -> Generator[simpy.Event, Any, None]:
        """Let steps that end at `ends` pass. Where something arrives meanwhile the step in flight runs to its end, and
        the rest, which never began, are taken off the list."""
        env = self.env
        if len(ends) == 1:
            yield env.timeout(ends[0] - self.now)
            return
        self._flight = ends
        self._wake = env.event()
        yield env.timeout(ends[-1] - self.now) | self._wake
        now = int(env.now)
        if now < ends[-1]:
            _cut(ends, now)
            yield env.timeout(ends[-1] - now)
        self._flight = []

    def _commit_decode(self, batch: Batch, shape: StepShape, ends: list[int], start: int) -> None:
        """The steps of `_stride` that ended at `ends` have been taken."""
        record, engine, steps = self.record, self.engine, len(ends)
        self._record_stride(shape, ends, start)
        at = 0
        while True:  # piece by piece, where the timeline looks at the state within
            to = min(steps, bisect_left(ends, record.next_sample) + 1)
            if to > 1 and self.source.next_ns <= ends[to - 2]:
                self._arrivals(ends[to - 2])  # what the last of these steps saw come
            finished = engine.apply(batch, to - at)
            at = to
            if ends[to - 1] >= record.next_sample:
                self._sample(ends[to - 1])
            if to == steps:
                break
        self._complete(finished)

    def _record_stride(self, shape: StepShape, ends: list[int], start: int) -> None:
        decode = self.decode
        before = decode.tokens(ends[-1])
        self.record.decoded(start, ends, self.index, decode.count, shape.attended[0], before)

    def halt(self) -> None:
        """It is gone: record the steps that have ended of the stride in flight."""
        if ended := ended_by(self._flight, int(self.env.now)):
            self._record_stride(decode_shape(self.decode, FULL, 0), ended, self.now)

    def _complete(self, finished: list[Job]) -> None:
        for job in finished:
            self.record.complete(job, self.now, self.index)
            self.source.ended(job, self.now)

    # -- what it looks like -------------------------------------------------------------------------------------------

    def _sample(self, until: int) -> None:
        engine = self.engine
        running = len(engine.running) + (engine.chunked is not None)
        self.record.sample(until, self.index, running, len(engine.waiting), self)

    def memory_map(self) -> list[tuple[int, int, int]]:
        """What running requests hold of their own and share, drawn in order of row; pages have no numbers here."""
        size, at, found = self.token_bytes, 0, []
        for job in sorted(self._holding(), key=lambda job: job.row):
            end = at + (self.pool.length(job) - job.owned) * size
            found.append((at, end, job.row))
            at = end
        return found

    def _holding(self) -> list[Job]:
        engine = self.engine
        jobs = {*engine.running, *engine.prefilled} | ({engine.chunked} if engine.chunked else set())
        return [job for job in jobs if job.node is not None]

    def stats(self) -> MemoryStats:
        """Protected tree pages and pages of requests are used, evictable ones are cached; the tail of a last page
        counts as reserved (it is at most a page a request)."""
        pool, size = self.pool, self.token_bytes
        own = pool.lengths - pool.owned
        protected = pool.tree.protected * pool.unit
        reserved = pool.tokens - pool.free - protected - pool.evictable - own
        return MemoryStats(
            pool=pool.tokens * size, used=(protected + own) * size, reserved=reserved * size, internal=0,
            cached=pool.evictable * size, external=0, free=pool.free * size,
            shared_saved=max(0, pool.owned - protected) * size, largest_free=pool.free * size,
        )


def _cut(ends: list[int], arrival: int) -> None:
    """Keep the steps up to the one after which an `arrival` is seen."""
    del ends[bisect_left(ends, arrival) + 1 :]
