"""Prefill first, as in vLLM before V1 and Orca: waiting prompts run whole, in steps of their own, before any decode."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from kvsim.sched.base import SCHEDULERS, Plan, Scheduler, State


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefillFirst(Scheduler):
    """A step is either prompts (as many whole ones as the token budget takes) or one token of every running sequence.

    Where a decode step finds no memory, the sequence admitted last is preempted and starts again.
    """

    def plan(self, state: State) -> Plan:
        plan = Plan()
        admit_prompts(state, plan)
        if not plan.chunks:
            decode_all(state, plan)
        plan.open = state.limits.priority or not (state.waiting or state.running() >= state.limits.sequences)
        return plan


def admit_prompts(state: State, plan: Plan) -> None:
    """Whole prompts from the head of the queue, within the token budget; one longer than the budget runs alone."""
    budget = state.limits.tokens
    for seq in list(state.partial):  # their prefix has arrived from a second tier
        want = seq.pending
        if not state.kv.grow(seq, want):
            state.partial.remove(seq)
            state.preempt(seq, plan)
            continue
        plan.chunks.append((seq, want, seq.computed))
        seq.computed += want
        budget -= want
    while state.waiting and not state.blocked and state.running() < state.limits.sequences:
        seq = state.waiting.head()
        want = seq.tokens - state.kv.match(seq)
        if want > budget and plan.chunks:
            return
        planned = state.admit(want, 0, plan)
        if planned is None:
            return
        budget -= planned


def decode_all(state: State, plan: Plan) -> None:
    """One token of every decoding sequence, for as many steps as surely stay the same."""
    decode, kv = state.decode, state.kv
    while decode.count:
        plan.steps = kv.horizon(min(decode.horizon(), state.stride()))
        if plan.steps:
            if plan.preempted:
                plan.steps = 1  # those that were preempted may come back right after it
            return
        victim = decode.last()
        decode.leave(victim)
        kv.leave(victim)
        state.preempt(victim, plan)


SCHEDULERS("prefill-first")(PrefillFirst)
