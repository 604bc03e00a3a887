"""Chunked prefill as in vLLM V1: every step has one token budget; running sequences first, in order of admission.

Source: vLLM's v1/core/sched/scheduler.py (0.19 and 0.32 differ in constants), held against recordings of it step by
step (`kvsim validate schedule`). A running sequence that finds no block preempts the last one of the running list (the
least urgent one under priorities), which starts again from the head of the queue; in such a step nothing is admitted.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvsim.cache.base import Sequence
from kvsim.sched.base import SCHEDULERS, Plan, Scheduler, State


@mypyc_attr(allow_interpreted_subclasses=True)
class Chunked(Scheduler):
    """One token budget a step; decodes take one each, prompts are cut into chunks to fill it."""

    def plan(self, state: State) -> Plan:
        plan = Plan()
        decode, limits, kv, waiting = state.decode, state.limits, state.kv, state.waiting
        decoding, waits = decode.count, bool(waiting)
        if decoding:
            most = state.stride() if kv.returns_while_decoding else state.max_stride
            ends = decode.horizon()
            plan.steps = kv.horizon(ends if ends < most else most)
            if not plan.steps and decoding <= limits.tokens and not kv.returns_while_decoding and _in_order(state):
                _make_way(state, plan)
                decoding = decode.count
                plan.steps = min(1, decoding)
        if (decoding and plan.steps == 0) or decoding > limits.tokens or (state.partial and not _in_order(state)):
            plan.steps = 0
            budget = _walk(state, plan)
        else:
            budget = limits.tokens - decoding
            waits = waits and not plan.preempted
            if state.partial or (waits and budget and not state.blocked and state.running() < limits.sequences):
                if decoding:  # running sequences come first: they take their blocks before the chunks do
                    kv.advance(1)
                    plan.taken = 1
                if state.partial:
                    budget = _chunks(state, plan, budget)
        if waits and budget and not plan.preempted and not state.blocked:
            _admit(state, plan, budget)
        if plan.chunks or plan.preempted or plan.admitted:  # who is admitted and loads has no chunk, but memory
            plan.steps = min(plan.steps, 1)
        else:
            plan.open = limits.priority or not (waiting or state.running() >= limits.sequences)
        return plan


UNLIMITED = 1 << 62


def _in_order(state: State) -> bool:
    """Whether all decoding sequences were admitted before the first partial one, as is usual.

    Then the budget and memory that decodes take do not depend on the chunks, and need not be walked one by one.
    """
    if state.limits.priority:
        return False
    if not state.partial:
        return True
    first = state.partial[0].admitted
    return first > state.decode.latest or all(seq.admitted < first for seq in state.decode.sequences)


def _make_way(state: State, plan: Plan) -> None:
    """Preempt the last running sequence until each that decodes finds room for its next token.

    The walk along the running list preempts the very same ones: it takes the last one away when what those before it
    need exceeds what is free, and as long as what all need does, it comes to that for one of them. (Not where windows
    give blocks back during the walk, nor under priorities.) A contiguous cache frees the last one's room before the
    others move, in the walk some had moved by then.
    """
    decode, kv = state.decode, state.kv
    while decode.count and not kv.horizon(1):
        if state.partial:
            victim = state.partial.pop()
        else:
            victim = decode.last()
            decode.leave(victim)
            kv.leave(victim)
        state.preempt(victim, plan)


def _chunk(state: State) -> int:
    """Most tokens of one prompt in this step: the chunk limit does not bind a request that is alone."""
    chunk = state.limits.chunk
    return chunk if chunk and state.running() + len(state.waiting) > 1 else UNLIMITED


def _chunks(state: State, plan: Plan, budget: int) -> int:
    """Next chunks of prompts that are partly computed; the last of them is preempted where one does not fit."""
    partial, chunk = state.partial, _chunk(state)
    at = 0
    while at < len(partial) and budget:
        seq = partial[at]
        want = min(seq.pending, chunk, budget) if state.kv.chunkable else seq.pending
        while not state.kv.grow(seq, want):
            victim = partial.pop()
            state.preempt(victim, plan)
            if victim is seq:
                return budget
        plan.chunks.append((seq, want, seq.computed))
        seq.computed += want
        budget -= min(want, budget)
        at += 1
    return budget


def _walk(state: State, plan: Plan) -> int:
    """The same, one running sequence at a time: for steps in which memory or budget runs out among decodes."""
    chunk = _chunk(state)
    state.stop_decoding()
    running = state.partial
    budget = state.limits.tokens
    at = 0
    while at < len(running) and budget:
        seq = running[at]
        want = min(seq.pending, chunk, budget) if state.kv.chunkable else seq.pending
        fits = True
        while fits and not state.kv.grow(seq, want):
            victim = max(running, key=_urgency) if state.limits.priority else running[-1]
            place = running.index(victim)
            del running[place]
            planned = 0
            if place < at:  # it had its tokens for this step already: they go back to the budget
                at -= 1
                planned = plan.chunks.pop(place)[1]
                budget += planned
            fits = victim is not seq
            state.preempt(victim, plan, planned)
        if not fits:
            break  # it gave way itself: vLLM looks no further in this step, at those behind it neither
        plan.chunks.append((seq, want, seq.computed))
        seq.computed += want
        budget -= min(want, budget)
        at += 1
    return budget


def _urgency(seq: Sequence) -> tuple[int, int]:
    return seq.priority, seq.row


def _admit(state: State, plan: Plan, budget: int) -> None:
    waiting, kv, limits = state.waiting, state.kv, state.limits
    chunk = _chunk(state) if limits.chunk else UNLIMITED
    slots = limits.sequences - state.running()
    while waiting and budget and slots > 0:
        seq = waiting.head()
        want = seq.prompt + seq.generated - kv.match(seq)
        if kv.chunkable:
            want = min(want, chunk, budget)
        elif want > budget and plan.chunks:
            return
        planned = state.admit(want, seq.tokens if limits.whole_prompt else 0, plan)
        if planned is None:
            return
        slots -= 1
        budget -= min(planned, budget)


SCHEDULERS("chunked")(Chunked)
