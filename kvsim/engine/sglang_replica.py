"""A replica that runs SGLang's scheduler (sched/sglang.py): extend or decode, never both in a step.

Its rules look at every running request in every step (who is retracted, what all of them may still need), so it takes
steps one by one: the cost of a step grows with the batch, unlike in replica.py.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from kvsim.cache.base import MemoryStats, Sequence
from kvsim.cache.radix import Key
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.cost.shape import StepShape
from kvsim.engine.decode_set import NEVER
from kvsim.engine.interfaces import Source, StepCost
from kvsim.record import Recorder
from kvsim.sched.sglang import Batch, Limits, Sglang

PLACE = 24
"""bits of a key's integer that say which page of its content it is"""


def content_key(seq: Sequence, page: int) -> Key:
    """One integer for each whole page of prompt and answer: equal where the content so far is equal."""
    pages = (seq.prompt + seq.output) // page
    key = np.arange(pages, dtype=np.int64)
    known = 0
    for id, first, count in seq.chain or ():
        stop = min(first + count, pages)
        key[first:stop] |= np.int64(id) << PLACE
        known = stop
    key[known:] |= np.int64(-2 - seq.row) << PLACE
    return key


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
        index: int = 0,
    ) -> None:
        self.env = env
        self.pool = pool
        self.engine = Sglang(pool, limits)
        self.token_bytes = token_bytes
        self.cost = cost
        self.windows = windows
        self.source = source
        self.record = recorder
        self.index = index
        self._silent: set[int] = set()
        """rows that ask for no token: they end with their prefill"""

    def run(self) -> Generator[simpy.Event, Any, None]:
        env, source, engine = self.env, self.source, self.engine
        while True:
            now = int(env.now)
            if source.next_ns <= now:
                self._arrivals(now)
            batch = engine.schedule()
            for job in engine.retracted:
                job.peak = max(job.peak, job.tokens - 1)
            if batch is None:
                engine.apply(None)
                if source.next_ns < NEVER:
                    yield env.timeout(source.next_ns - now)
                    self._sample(int(env.now) - 1)
                    continue
                event = source.wait()
                if event is None:
                    return
                yield event
                self._sample(int(env.now) - 1)
                continue
            yield from self._step(batch)

    # -- what a cluster asks ------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.engine.waiting)

    def wake(self) -> None:
        """It takes steps one by one, and looks after each."""
        return

    def cached(self, seq: Sequence) -> int:
        """Prompt tokens of `seq` in the radix tree now."""
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

    def _step(self, batch: Batch) -> Generator[simpy.Event, Any, None]:
        record, start = self.record, int(self.env.now)
        shape, tokens, decode = self._shape(batch)
        for chunk in batch.chunks if batch.kind == "extend" else ():
            record.admit(chunk.job, start)
        yield self.env.timeout(self.cost.step(shape))
        now = int(self.env.now)
        record.engine_steps += 1
        record.prefill_tokens += tokens
        record.decode_tokens += decode
        attended = shape.attended[0] if shape.attended else 0
        record.step(start, now, 1, self.index, decode, len(shape.chunks), tokens, attended)
        for chunk in batch.chunks:
            job = chunk.job
            if job.peak > chunk.start:
                again = min(job.peak, chunk.start + chunk.tokens) - chunk.start
                job.recomputed += again
                record.recomputed_tokens += again
        before = {chunk.job: chunk.job.generated for chunk in batch.chunks}
        finished = self.engine.apply(batch)
        for job, generated in before.items():
            if job.generated > generated and job.row not in self._silent:
                self._token(job, now)
        if now >= record.next_sample:
            self._sample(now)
        for job in finished:
            record.complete(job, now, self.index)
            self.source.ended(job, now)

    def _token(self, job: Job, now: int) -> None:
        if job.generated == 1:
            self.record.first_token_ns[job.row] = now
        else:
            self.record.gap(now - job.last_token_ns)
        job.last_token_ns = now

    def _shape(self, batch: Batch) -> tuple[StepShape, int, int]:
        """(the step, its prefill tokens, its decoding sequences)"""
        if batch.kind == "extend":
            chunks = tuple((chunk.tokens, chunk.start) for chunk in batch.chunks)
            sampled = sum(chunk.start + chunk.tokens == chunk.job.tokens for chunk in batch.chunks)
            return StepShape(chunks=chunks, sampled=sampled), sum(tokens for tokens, _ in chunks), 0
        n = len(batch.chunks)
        lengths = [chunk.start + 1 for chunk in batch.chunks]
        longest = max(lengths)
        attended = tuple(sum(lengths) if not w else sum(min(length, w) for length in lengths) for w in self.windows)
        shape = StepShape(
            decode=n, attended=attended, longest=tuple(min(longest, w) if w else longest for w in self.windows),
            growing=(0,) * len(self.windows), longest_grows=(False,) * len(self.windows), sampled=n,
        )
        return shape, 0, n

    def _sample(self, until: int) -> None:
        engine = self.engine
        running = len(engine.running) + (engine.chunked is not None)
        self.record.sample(until, self.index, running, len(engine.waiting), self)

    def memory_map(self) -> list[tuple[int, int, int]]:
        """What running requests hold of their own and share, drawn in order of row; pages have no numbers here."""
        size, at, found = self.token_bytes, 0, []
        for job in sorted(self._holding(), key=lambda job: job.row):
            end = at + (job.computed - job.owned) * size
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
        pool, size, held = self.pool, self.token_bytes, self._holding()
        own = sum(job.computed - job.owned for job in held)
        pages = sum(-(-job.computed // pool.page) * pool.page - job.owned for job in held)
        protected = pool.tree.protected * pool.unit
        shared = sum(job.owned for job in held) - protected
        # slots that results of this step give back are still on their way to `free`
        reserved = pool.tokens - pool.free - protected - pool.evictable - own
        assert reserved >= pages - own
        return MemoryStats(
            pool=pool.tokens * size, used=(protected + own) * size, reserved=reserved * size, internal=0,
            cached=pool.evictable * size, external=0, free=pool.free * size,
            shared_saved=max(0, shared) * size, largest_free=pool.free * size,
        )
