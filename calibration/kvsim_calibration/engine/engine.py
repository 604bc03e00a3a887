"""The serving loop: plan a step, run it for real, hand out its tokens, look at the clock, repeat.

Continuous batching with chunked prefill under the scheduler that the simulator has too (kvsim.sched), over real memory:
so a prediction and a run of this engine differ by what the prediction is about, the time of a step. Here every running
sequence is walked one by one, so the scheduler's decode set stays empty and a decode is a chunk of one token.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kvsim.cache.base import Allocator, Sequence
from kvsim.engine.decode_set import NEVER, DecodeSet
from kvsim.engine.replay import TraceSource
from kvsim.record import Recorder
from kvsim.sched import SCHEDULERS
from kvsim.sched.base import Limits, Plan, State
from kvsim.trace import Trace
from kvsim.units import NS_PER_S
from kvsim_calibration.engine.caches import Batch, Cache
from kvsim_calibration.engine.model import Llama
from kvsim_calibration.measure.prompts import LOW, token_ids

Progress = Callable[[int], None]


class Engine:
    """A model, a cache and the memory that the scheduler sees (`kv` accounts for what `cache` holds)."""

    def __init__(
        self, model: Llama, cache: Cache, kv: Allocator, limits: Limits, max_model_len: int, scheduler: str = "chunked"
    ) -> None:
        self.model, self.cache, self.kv = model, cache, kv
        self.limits, self.max_model_len = limits, max_model_len
        self.scheduler = SCHEDULERS.get(scheduler)()
        self.tokens: dict[int, list[int]] = {}
        """row of the trace → prompt and generated tokens, kept when it is over"""
        self.gpu = model.device.type == "cuda"

    def run(
        self, trace: Trace, seed: int = 0, progress: Progress | None = None,
        watch: Callable[[Plan], None] | None = None,
    ) -> Recorder:
        """Serve `trace` in real time: requests arrive by its clock, however slow the engine is (open loop). Greedy;
        an answer has as many tokens as the trace says. `watch` sees every plan before it runs."""
        self.start(trace, seed, progress)
        while True:
            plan = self.turn(watch)
            if not plan.chunks and not plan.preempted:
                if self.source.next_ns == NEVER:
                    assert not self.state.waiting, "requests wait, and nothing runs that could make room"
                    return self.record
                time.sleep(max(0, self.source.next_ns - self.now()) / NS_PER_S)

    def start(self, trace: Trace, seed: int = 0, progress: Progress | None = None) -> None:
        """Nothing has arrived, and the clock runs."""

        def prompt(row: int) -> list[int]:
            ids = token_ids(trace, row, LOW + self.model.dims.vocab, seed) - LOW
            return self.tokens.setdefault(row, ids.tolist())

        self.state = State(DecodeSet((0,)), self.kv, self.limits, 1)
        self.record = Recorder(len(trace), int(trace.arrival_ns.max()) if len(trace) else 0)
        self.source = TraceSource(trace, self.record, self.max_model_len, prompt, progress)
        self.begin = time.monotonic_ns()

    def turn(self, watch: Callable[[Plan], None] | None = None) -> Plan:
        """Take what has arrived, plan a step and run it. Returns the plan: without chunks nothing ran."""
        now = self.now()
        for seq in self.source.take(now):
            if self.kv.never_fits(seq):
                self.source.refused(seq, "never_fits")
            else:
                self.state.waiting.arrive(seq)
        plan = self.scheduler.plan(self.state)
        if watch is not None:
            watch(plan)
        for seq in plan.preempted:
            self.cache.drop(seq.row)
        for seq in plan.admitted:
            self.record.admit(seq, now)
        if plan.chunks:
            self._step(plan, now)
        return plan

    def now(self) -> int:
        """ns since `start`."""
        return time.monotonic_ns() - self.begin

    def _step(self, plan: Plan, start: int) -> None:
        """Run a plan and hand out what it sampled."""
        record, state, chunks = self.record, self.state, plan.chunks
        sampling = [seq.pending == 0 for seq, _, _ in chunks]
        chosen = iter(self._forward(chunks, sampling))
        now = self.now()
        decode = attended = 0
        done: list[Sequence] = []
        for (seq, tokens, context), samples in zip(chunks, sampling, strict=True):
            if seq.generated and tokens == 1 and samples:
                decode += 1
                attended += context + 1
            again = min(seq.peak, context + tokens) - context
            if again > 0:
                seq.recomputed += again
                record.recomputed_tokens += again
            if samples:
                self._sampled(seq, next(chosen), now)
                if seq.generated >= seq.output:
                    done.append(seq)
        prefill = sum(tokens for _, tokens, _ in chunks) - decode
        record.engine_steps += 1
        record.prefill_tokens += prefill
        record.decode_tokens += decode
        record.step(start, now, 1, 0, decode, len(chunks) - decode, prefill, attended)
        if now >= record.next_sample:
            record.sample(now, 0, state.running(), len(state.waiting), self.kv)
        for seq in done:
            self._finish(seq, now)
        state.blocked = False

    def _forward(self, chunks: list[tuple[Sequence, int, int]], sampling: list[bool]) -> list[int]:
        """Compute all chunks in one forward; the tokens of those that sample."""
        if not self.kv.chunkable:  # without a cache: everything again
            chunks = [(seq, context + tokens, 0) for seq, tokens, context in chunks]
        batch = Batch([seq.row for seq, _, _ in chunks], [n for _, n, _ in chunks], [c for _, _, c in chunks])
        ids = [token for seq, n, c in chunks for token in self.tokens[seq.row][c : c + n]]
        rows = [last for last, samples in zip(batch.last(), sampling, strict=True) if samples]
        logits = self.model(torch.tensor(ids, device=self.model.device), batch, self.cache, rows)
        return logits.argmax(-1).tolist()  # waits for a GPU

    def _sampled(self, seq: Sequence, token: int, now: int) -> None:
        if not seq.output:
            return
        self.tokens[seq.row].append(token)
        seq.generated += 1
        if seq.generated == 1:
            self.record.first_token_ns[seq.row] = now
        else:
            self.record.gap(now - seq.last_token_ns)
        seq.last_token_ns = now

    def _finish(self, seq: Sequence, now: int) -> None:
        self.state.partial.remove(seq)
        self.state.release(seq, finished=True)
        self.cache.drop(seq.row)
        self.record.complete(seq, now, 0)
        self.source.ended(seq, now)
