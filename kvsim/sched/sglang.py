"""SGLang's scheduler (0.5; no overlap, mixed chunks or speculation), as decisions on a RadixPool: prefill first, the
longest cached prefix or the oldest first, an estimate of what running requests will still need, retraction when it was
wrong. The rules are in docs/sglang.md; recordings of SGLang itself hold it to them, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsim.cache.radix import Node, RadixTree
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.sched.base import SCHEDULERS, DecodingSet, admission

START_RATIO, LEAST_RATIO, DECAY_STEPS = 0.7, 0.14, 600
"""share of its declared output that a running request is taken to need: at the start, at least (times the start), and
decode steps from one to the other"""
RETRACT_STEPS = 20
"""decode steps to make room for when something was retracted"""
LONGEST_ESTIMATE = 4096
"""output tokens that one request reserves at most"""
REFRESH_EVERY, MOST_MATCHED = 32, 128
"""passes between refreshes of waiting prefixes; waiting requests that are matched at most"""
SHARED_BY_WAITING = 32
"""tokens from which a request's prefix counts as shared with one that waits ahead of it"""


@dataclass(frozen=True, slots=True)
class Limits:
    """SGLang's settings by their meaning; names of its options in brackets."""

    max_running: int
    """requests at once (--max-running-requests)"""
    chunk_tokens: int
    """prefill tokens of a step, at least a page (--chunked-prefill-size)"""
    max_prefill_tokens: int
    """a step admits no further prompt beyond these (--max-prefill-tokens)"""
    policy: Literal["fcfs", "lpm"] = "fcfs"
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


class Budget:
    """What one prefill pass may still take. Tokens are charged in whole pages."""

    def __init__(self, pool: RadixPool, reserved: float, limits: Limits) -> None:
        self.pool = pool
        self.reserved = reserved
        """tokens that running and newly admitted requests are taken to need"""
        self.chunk = limits.chunk_tokens
        self.prefill = limits.max_prefill_tokens

    @property
    def room(self) -> float:
        return self.pool.free + self.pool.evictable - self.reserved

    @property
    def spent(self) -> bool:
        """Whether this step computes enough (and memory is not what is short)."""
        return self.room > 0 and (self.prefill <= 0 or self.chunk <= 0)

    def charge(self, tokens: int, max_new: int) -> None:
        page = self.pool.page
        tokens = -(-tokens // page) * page
        self.reserved += tokens + page + max_new
        self.chunk -= tokens
        self.prefill -= tokens


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
        self.start_ratio = min(1.0, START_RATIO * limits.conservativeness)
        self.ratio = self.start_ratio
        self.prefilled: list[Job] = []
        self._shut = False
        """whether admission waits until a running request leaves"""
        self._ended = False
        """whether a running request has ended since they were looked through"""
        self._passes = 0
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
                self.ratio = self.start_ratio
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
            self._decay(1)
        else:
            self._retract()
        pool.advance(1)
        more = 0 if self.waiting and not self._shut else pool.horizon(self.decode.horizon() - 1)
        return Batch("decode", [], 1 + more, not self._shut)

    def _decoded(self, steps: int) -> list[Job]:
        """`steps` decode steps are over; of the first of a batch the memory is taken already."""
        decode, pool = self.decode, self.pool
        more = decode.step + steps - pool.step
        self._decay(more)
        pool.advance(more)
        finished: list[Job] = sorted(decode.advance(steps), key=admission)  # type: ignore[arg-type]
        for job in finished:
            self._leave(job)
            pool.free += pool.checkpoint(job, job.computed) + pool.release(job)
            self._ended = True
        return finished

    def _decay(self, steps: int) -> None:
        """The estimate falls to its least, step by step: one product would round otherwise."""
        least = self.start_ratio * LEAST_RATIO
        by = (self.start_ratio - least) / DECAY_STEPS
        while steps > 0 and self.ratio != least:
            self.ratio = max(self.ratio - by, least)
            steps -= 1

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
        produced = sum([self._produced(job) + RETRACT_STEPS for job in self.running])
        self.ratio = min(1.0, produced / (sum([job.max_new for job in self.running]) + 1))
        self._shut = False
        for job in self.retracted:
            self.add(job)

    def _produced(self, job: Job) -> int:
        """Tokens that a running request has generated."""
        return job.base + self.decode.step + 1 - job.prompt

    # -- admission ---------------------------------------------------------------------------------------------------

    def _prefill(self) -> Batch | None:
        if not self.running:
            self._shut = False
        if not self.chunked and (self._shut or not self.waiting):
            return None
        if not self.chunked and len(self.running) >= self.limits.max_running:
            self._shut = True
            return None
        self._sort()
        budget = Budget(self.pool, self._reserved(), self.limits)
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

    def _reserved(self) -> float:
        """Tokens that running requests are taken to need until they end. Summed one by one, in order, as SGLang does:
        one product would round otherwise."""
        ratio, step = 1.0 if self.limits.ignore_eos else self.ratio, self.decode.step
        needed = 0.0
        for job in self.running:
            left = job.max_new + job.prompt - job.base - step - 1  # max_new − _produced(job), without a call
            needed += (left if left < LONGEST_ESTIMATE else LONGEST_ESTIMATE) * ratio
        return needed

    def _continue(self, job: Job, budget: Budget) -> Chunk:
        """The next piece of a prompt that is not complete. It always goes on: only its end frees its memory."""
        room = int(min(budget.chunk, budget.room))
        tokens = min(job.pending, room if room > 0 else budget.chunk)
        if tokens == job.pending:
            self.chunked = None
        budget.charge(tokens, 0 if self.chunked else min(job.max_new, LONGEST_ESTIMATE))
        return Chunk(job, job.computed, tokens)

    def _sort(self) -> None:
        """Put the queue in order; as a side effect, waiting prefixes become recent and are evicted later."""
        longest_first = self.limits.policy == "lpm" and len(self.waiting) <= MOST_MATCHED
        if longest_first:
            self._sort_by_prefix()
        elif self.limits.policy == "fcfs" and self.limits.priorities:
            self.waiting.sort(key=lambda job: (-job.priority, job.queued))
        if self.waiting and not longest_first and self.pool.eviction == "lru":
            if self._passes % REFRESH_EVERY == 0:
                for job in reversed(self.waiting[:MOST_MATCHED]):
                    self.pool.match(job, job.tokens)
            self._passes += 1

    def _sort_by_prefix(self) -> None:
        """Longest cached prefix first. Of requests that share a prefix which is not cached yet, the first goes ahead
        and the others come last, so that they find it cached."""
        rank: dict[Job, float] = {}
        ahead = RadixTree()
        for job in self.waiting:
            _, prefix = self.pool.match(job, job.tokens)
            rank[job] = -min(prefix, job.tokens - 1)
            if prefix <= SHARED_BY_WAITING:
                key = self.pool.key(job, job.tokens)
                if ahead.match(key).end * self.pool.unit >= SHARED_BY_WAITING:
                    rank[job] = float("inf")
                else:
                    ahead.insert(key)
        self.waiting.sort(key=rank.__getitem__)


SCHEDULERS("sglang")(Sglang)
