"""The end of a step with prefill chunks: sequences whose input is complete have a token, and decode from here on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cache.base import Sequence
from kvsim.sched.base import Plan

if TYPE_CHECKING:
    from kvsim.engine.replica import Replica


def sample(replica: Replica, plan: Plan, now: int) -> list[Sequence]:
    """Sample a token for each chunk that completes its sequence's input; returns those that are done."""
    record, forks = replica.record, replica.source.forks
    done: list[Sequence] = []
    sampled: set[Sequence] = set()
    for seq, tokens, context in plan.chunks:
        if seq.peak > context:
            again = min(seq.peak, context + tokens) - context
            seq.recomputed += again
            record.recomputed_tokens += again
        generated = seq.generated
        if seq.prompt + generated > seq.computed:
            continue
        sampled.add(seq)
        if seq.output:
            seq.generated = generated = generated + 1
            if generated == 1:
                record.first_token_ns[seq.row] = now
            else:
                record.gap(now - seq.last_token_ns)
            seq.last_token_ns = now
        if forks:
            done += _fork(replica, seq, now)
        if generated >= seq.output:
            done.append(seq)
        else:
            replica.join(seq)
    state = replica.state
    if sampled:
        state.partial = [seq for seq in state.partial if seq not in sampled]
    return done


def _fork(replica: Replica, seq: Sequence, now: int) -> list[Sequence]:
    """Further answers to the prompt of `seq` share its blocks and have their first token with it; one that cannot
    waits like any request. Returns those that are done."""
    record, state = replica.record, replica.state
    done: list[Sequence] = []
    for child in replica.source.forked(seq):
        if state.running() >= state.limits.sequences or not replica.kv.fork(seq, child):
            state.waiting.arrive(child)
            continue
        state.admissions += 1
        child.admitted = state.admissions
        child.cached = child.prompt
        record.admit(child, record.scheduled_ns[seq.row])
        if child.output:
            child.generated = 1
            record.first_token_ns[child.row] = child.last_token_ns = now
        if child.generated >= child.output:
            done.append(child)
        else:
            replica.join(child)
    return done
