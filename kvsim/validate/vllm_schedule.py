"""Replay a recording of vLLM's own scheduler through ours: the same requests, then step against step.

A recording (docs/validation.md) lists limits, requests with their prompt's token ids, and for every engine step what
was scheduled. Every step takes one nanosecond here, so that arrival by step number is arrival by clock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.base import Allocator
from kvsim.cache.hybrid import Hybrid
from kvsim.cache.paged import Paged
from kvsim.cache.prefix import Part, PrefixPaged
from kvsim.cost.shape import StepShape
from kvsim.engine.replay import replay
from kvsim.engine.replica import Replica
from kvsim.sched.base import Limits, Plan
from kvsim.sched.chunked import Chunked
from kvsim.trace.types import make_trace

Json = dict[str, Any]


class OneNanosecond:
    """Every step takes the same time."""

    def step(self, shape: StepShape) -> int:
        return 1

    def decode_run(self, shape: StepShape, k: int) -> NDArray[np.int64]:
        return np.ones(k, np.int64)

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        return [1] * k


def generated_token(request: int, position: int) -> int:
    """The made-up token that the recorded request emits at a position of its sequence."""
    return 1000 + (request * 7919 + position * 104729) % 40000


def chains(requests: list[Json], block_size: int) -> list[list[Part]]:
    """Chained content ids of every full block of prompt and output, equal where the tokens so far are equal."""
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    all_chains = []
    for request in requests:
        tokens = list(request["prompt"])
        ends = len(tokens) + request["output_tokens"]
        tokens += [generated_token(request["id"], position) for position in range(len(tokens), ends)]
        parts: list[Part] = []
        before = -1
        for block in range(len(tokens) // block_size):
            content = tuple(tokens[block * block_size : (block + 1) * block_size])
            before = known.setdefault((before, content), len(known))
            parts.append((before, block, 1))
        all_chains.append(parts)
    return all_chains


def allocator(limits: Json) -> Allocator:
    if "kv_groups" in limits:
        return Hybrid(blocks=limits["num_blocks"], block_size=limits["block_size"], token_bytes=1, unusable=1,
                      windows=tuple(limits["kv_groups"]), prefix=limits["prefix_caching"],
                      batch_tokens=limits["max_num_batched_tokens"], max_model_len=limits["max_model_len"])
    kind = PrefixPaged if limits["prefix_caching"] else Paged
    return kind(blocks=limits["num_blocks"], block_size=limits["block_size"], token_bytes=1, unusable=1)


def steps(recording: Json) -> list[Json]:
    """The steps that our scheduler takes, in the recording's form."""
    limits, requests = recording["limits"], recording["requests"]
    trace = make_trace(
        "recording", "recording", [r["arrival_step"] for r in requests], [len(r["prompt"]) for r in requests],
        [r["output_tokens"] for r in requests], priority=[r.get("priority", 0) for r in requests],
    )
    names = [str(request["id"]) for request in requests]
    taken: list[Json] = []

    def watch(replica: Replica, plan: Plan) -> None:
        now = int(replica.env.now)
        kv: Any = replica.kv
        if plan.steps and not plan.taken:  # what decodes take, they take when the step is scheduled
            kv.advance(1)
            plan.taken = 1
        free_blocks = kv.free
        if not plan.chunks and not plan.steps:
            if not plan.preempted:
                return
            replica.now += 1  # the first that runs gave way itself: no time passes in ours, theirs counts it as a step
        while len(taken) < now:  # steps in which nothing was there to run
            taken.append(_step({}, replica, [], 0, [], {}, names))
        scheduled = {names[seq.row]: tokens for seq, tokens, _ in plan.chunks}
        running = list(replica.state.partial)
        if plan.steps:
            scheduled |= {names[seq.row]: 1 for seq in replica.decode.sequences}
        running += replica.decode.sequences
        running.sort(key=lambda seq: seq.admitted)
        cached = {names[seq.row]: seq.cached for seq in plan.admitted if not seq.preemptions}
        taken.append(_step(scheduled, replica, running, free_blocks, plan.preempted, cached, names))
        if isinstance(kv, Hybrid):
            taken[-1]["held"] = {names[seq.row]: kv.held(seq) for seq in running}

    replay(
        trace, scheduler=Chunked(), kv=allocator(limits), cost=OneNanosecond(), max_stride=1, watch=watch,
        chains=chains(requests, limits["block_size"]).__getitem__,
        limits=Limits(sequences=limits["max_num_seqs"], tokens=limits["max_num_batched_tokens"],
                      chunk=limits["long_prefill_token_threshold"], whole_prompt=True,
                      priority=limits.get("scheduling_policy") == "priority"),
    )
    return taken


def _step(scheduled: Json, replica: Replica, running: list[Any], free: int, preempted: list[Any], cached: Json,
          names: list[str]) -> Json:
    return {
        "scheduled": scheduled, "free_blocks": free, "running": [names[seq.row] for seq in running],
        "waiting": len(replica.state.waiting), "preempted": sorted(names[seq.row] for seq in preempted),
        "cached_at_admission": cached,
    }
