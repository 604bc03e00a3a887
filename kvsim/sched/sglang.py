"""SGLang's scheduler (0.5; no overlap, mixed chunks or speculation), as decisions on a RadixPool: prefill first, the
longest cached prefix or the oldest first (sglang_order.py), an estimate of what running requests will still need
(sglang_budget.py), retraction when it was wrong. The rules are in docs/sglang.md; recordings of SGLang itself hold it
to them, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsim.cache.radix import Node
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.sched.base import SCHEDULERS, DecodingSet, admission
from kvsim.sched.sglang_budget import LONGEST_ESTIMATE, RETRACT_STEPS, Budget, Estimate
from kvsim.sched.sglang_order import Order, Policy


@dataclass(frozen=True, slots=True)
class Limits:
    """SGLang's settings by their meaning; names of its options in brackets."""

    max_running: int
    """requests at once (--max-running-requests)"""
    chunk_tokens: int
    """prefill tokens of a step, at least a page (--chunked-prefill-size)"""
    max_prefill_tokens: int
    """a step admits no further prompt beyond these (--max-prefill-tokens)"""
    policy: Policy = "fcfs"
    """order of the queue (--schedule-policy)"""
    priorities: bool = False
    """larger priority first (--enable-priority-scheduling)"""
    ignore_eos: bool = False
    """answers always reach their declared length, so all of it is reserved"""
    conservativeness: float = 1.0
    """scales the ratio at the start (--schedule-conservativeness)"""


class Chunk(NamedTuple):
    """What one request does in an extend step: compute tokens start … start + tokens − 1."""

    job: Job
    start: int
    tokens: int


class Batch:
    """An extend step, or one token of every running request."""

    __slots__ = ("chunks", "kind", "open", "steps")

    def __init__(
        self, kind: Literal["extend", "decode"], chunks: list[Chunk], steps: int = 1, open: bool = True
    ) -> None:
        self.kind = kind
        self.chunks = chunks
        """of an extend step"""
        self.steps = steps
        """decode steps to take like this one before anything else is to be decided; the memory of one is taken"""
        self.open = open
        """whether an arrival could change the step after this one"""


class Sglang:
    """Call `add` for arrivals, then `schedule`, run the batch, and `apply` it; once a step, also when it is None."""

    def __init__(self, pool: RadixPool, limits: Limits, decode: DecodingSet) -> None:
        self.pool = pool
        self.limits = limits
        self.decode = decode
        """those of `running` that have not ended"""
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        """those that decode, in order; a prefilled request joins them one step later, and ended ones leave then"""
        self.chunked: Job | None = None
        """the request whose prompt is not complete"""
        self.retracted: list[Job] = []
        """in this step, in order"""
        self.estimate = Estimate(limits.conservativeness, limits.ignore_eos)
        self.prefilled: list[Job] = []
        self._shut = False
        """whether admission waits until a running request leaves"""
        self._ended = False
        """whether a running request has ended since they were looked through"""
        self._order = Order(pool, limits.policy, limits.priorities)
        self._entries = 0
        self._joined = 0

    def add(self, job: Job) -> None:
        """A request arrives, or comes back, at the end of the queue."""
        self._entries += 1
        job.queued = self._entries
        self.waiting.append(job)

    def schedule(self) -> Batch | None:
        """Decide the next step and take its memory. Prefill goes first; decode runs only if there is none."""
        self.retracted = []
        if self.chunked:
            self.pool.free += self.pool.checkpoint(self.chunked, self.chunked.computed)
        self._join()
        return self._prefill() or self._decode()

    def apply(self, batch: Batch | None, steps: int = 1) -> list[Job]:
        """The batch is computed, one that decodes `steps` times in a row (at most its `steps` in all, in one call or
        several): every complete request has as many tokens more. Returns those that are finished."""
        if batch is None:
            if not self.waiting and not self.running:
                self.estimate.restart()
            return []
        return self._extended(batch) if batch.kind == "extend" else self._decoded(steps)

    def never_fits(self, job: Job) -> bool:
        """Whether `job` would not be admitted, or not end, even alone; the caller refuses it before `add`."""
        declared = job.prompt + min(job.max_new, LONGEST_ESTIMATE) + self.pool.page
        return declared >= self.pool.tokens or job.final > self.pool.tokens

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken; between `apply` and `schedule`. Slow: for tests."""
        jobs = {*self.running, *self.prefilled} | ({self.chunked} if self.chunked else set())
        self.pool.check([job for job in jobs if job.node])
        assert {job for job in self.running if job.decoding} == self.decode.sequences
        assert self.pool.step == self.decode.step
        assert len(self.running) <= self.limits.max_running
        assert all(not job.computed and not job.node for job in self.waiting)

    # -- the decode set ----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Finished requests leave and prefilled ones join; whenever someone leaves, admission opens again."""
        ready = [job for job in self.prefilled if job is not self.chunked and job.generated < job.output]
        if len(ready) < len(self.prefilled):
            self._shut = False
        self.prefilled = []
        if ready and not self.running:
            self._shut = False
        if self._ended:
            self._ended = self._shut = False
            self.running = [job for job in self.running if job.decoding]
        for job in ready:
            job.base = job.computed - self.decode.step
            self.decode.join(job)
            self.pool.join(job)
        self._place(ready)
        self.running += ready

    def _place(self, jobs: list[Job]) -> None:
        """These are the last of the running requests, in this order."""
        for job in jobs:
            self._joined += 1
            job.admitted = self._joined

    def _leave(self, job: Job) -> None:
        self.decode.leave(job)
        self.pool.leave(job)

    def _decode(self) -> Batch | None:
        """One step's memory; the steps after it need no decision while nobody ends, it fits, and admission is shut or
        nobody waits."""
        if not self.running:
            return None
        pool = self.pool
        if pool.make_room(pool.demand(1)):
            self.estimate.decay(1)
        else:
            self._retract()
        pool.advance(1)
        more = 0 if self.waiting and not self._shut else pool.horizon(self.decode.horizon() - 1)
        return Batch("decode", [], 1 + more, not self._shut)

    def _decoded(self, steps: int) -> list[Job]:
        """`steps` decode steps are over; of the first of a batch the memory is taken already."""
        decode, pool = self.decode, self.pool
        more = decode.step + steps - pool.step
        self.estimate.decay(more)
        pool.advance(more)
        finished: list[Job] = sorted(decode.advance(steps), key=admission)  # type: ignore[arg-type]
        for job in finished:
            self._leave(job)
            pool.free += pool.checkpoint(job, job.computed) + pool.release(job)
            self._ended = True
        return finished

    def _retract(self) -> None:
        """Send requests back to the queue, fewest produced tokens and then longest prompt first, until the others can
        go on; the last one stays. Those that stay are left sorted the other way round."""
        pool = self.pool
        self.running.sort(key=lambda job: (job.base - job.prompt, -job.prompt), reverse=True)
        while len(self.running) > 1:
            job = self.running.pop()
            self._leave(job)
            pool.free += pool.release(job)
            pool.make_room(len(self.running) * RETRACT_STEPS)
            job.computed = job.cached = 0
            job.preemptions += 1
            self.retracted.append(job)
            if pool.make_room(pool.demand(1)):
                break
        self._place(self.running)
        self.estimate.correct(self.running, self.decode.step)
        self._shut = False
        for job in self.retracted:
            self.add(job)

    # -- admission ---------------------------------------------------------------------------------------------------

    def _prefill(self) -> Batch | None:
        if not self.running:
            self._shut = False
        if not self.chunked and (self._shut or not self.waiting):
            return None
        if not self.chunked and len(self.running) >= self.limits.max_running:
            self._shut = True
            return None
        self._order.sort(self.waiting)
        reserved = self.estimate.reserved(self.running, self.decode.step)
        budget = Budget(self.pool, reserved, self.limits.chunk_tokens, self.limits.max_prefill_tokens)
        chunks = [self._continue(self.chunked, budget)] if self.chunked else []
        going_on = len(chunks)
        for job in self.waiting:
            if budget.spent:
                break
            if len(chunks) >= self.limits.max_running - len(self.running):
                self._shut = True
            if self._shut:
                break
            node, prefix = self.pool.match(job, job.tokens - 1)
            tokens = self._piece(job, node, prefix, budget)
            if tokens:
                self.pool.adopt(job, node, prefix)
                chunks.append(Chunk(job, prefix, tokens))
                if tokens < job.pending:
                    self.chunked = job
                budget.charge(tokens, 0 if self.chunked is job else min(job.max_new, LONGEST_ESTIMATE))
            if tokens is None or budget.room <= 0:
                self._shut = bool(chunks or self.running)
                break
            if tokens == 0:
                break
        del self.waiting[: len(chunks) - going_on]
        return self._extend(chunks)

    def _piece(self, job: Job, node: Node, prefix: int, budget: Budget) -> int | None:
        """Tokens that a waiting request may compute now: all of its prompt, or what is left of the step's budget in
        whole pages. None if memory for all it may need is short."""
        page, rest = self.pool.page, job.tokens - prefix
        self.pool.tree.lock(node)  # its own prefix is not to be evicted for it
        room = budget.room
        self.pool.tree.unlock(node)
        if rest + min(job.max_new - job.generated, LONGEST_ESTIMATE) + page >= room:
            return None
        return rest if -(-rest // page) * page <= budget.chunk else budget.chunk // page * page

    def _extend(self, chunks: list[Chunk]) -> Batch | None:
        """Take the memory of the chunks. SGLang asks for a page more a request than it takes, with pages of tokens."""
        if not chunks:
            return None
        spare = self.pool.page if self.pool.page > 1 else 0
        self.pool.make_room(sum(chunk.tokens + spare for chunk in chunks))
        for chunk in chunks:
            self.pool.take(self.pool.pages(chunk.start, chunk.tokens))
        return Batch("extend", chunks)

    def _extended(self, batch: Batch) -> list[Job]:
        """An extend step is over: requests whose prompt is complete have a token."""
        pool, finished = self.pool, []
        for job, _, tokens in batch.chunks:
            pool.compute(job, tokens)
            if job is self.chunked:
                continue
            job.generated += 1
            pool.free += pool.checkpoint(job, job.computed)
            if job.generated == job.output:
                pool.free += pool.release(job)
                finished.append(job)
        self.prefilled = [chunk.job for chunk in batch.chunks]
        return finished

    def _continue(self, job: Job, budget: Budget) -> Chunk:
        """The next piece of a prompt that is not complete. It always goes on: only its end frees its memory."""
        room = int(min(budget.chunk, budget.room))
        tokens = min(job.pending, room if room > 0 else budget.chunk)
        if tokens == job.pending:
            self.chunked = None
        budget.charge(tokens, 0 if self.chunked else min(job.max_new, LONGEST_ESTIMATE))
        return Chunk(job, job.computed, tokens)


SCHEDULERS("sglang")(Sglang)
