"""What binds at the largest rate, told from measured facts of the run at the next one; or why there is no such rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.cost import StepShape
from kvsim.plan.objectives import Columns, Objectives
from kvsim.plan.search import STEP, Run
from kvsim.record import REFUSED
from kvsim.result import MEMORY
from kvsim.setup import Setup
from kvsim.units import format_duration

SAMPLED = 64
"""steps of a run that are taken apart"""
FULL = 0.95
"""share of the pool, or of the batch's places, from which on it counts as full"""


@dataclass(frozen=True, slots=True)
class Facts:
    """Shares that one run was measured to have."""

    prefill: float
    """of step time: what chunks add to a step"""
    decode: float
    """of step time: weights and cache read for decoding"""
    interconnect: float
    host: float
    busy: float
    """of the time: the device runs a step"""
    pool: float
    """most of the KV pool that was in use"""
    batch: float
    """most of the batch's places that were in use"""
    preempted: float
    """preemptions a request"""
    queued: float
    """of the slowest tenth's TTFT: waiting to be scheduled"""


def facts(run: Run, setup: Setup) -> Facts:
    """Measure them."""
    prefill, decode, interconnect, host = _step_shares(run, setup)
    steps, timeline = run.record.step_columns(), run.record.timeline_columns()
    span = int(steps["end_ns"].max() - steps["start_ns"].min()) if len(steps["end_ns"]) else 0
    pool = np.sum([timeline[name] for name in MEMORY], axis=0)
    taken = pool - timeline["cached"] - timeline["free"]
    columns = run.record.request_columns()
    latencies = Columns(run.record, run.offer.trace)
    ttft, queue = latencies.values["ttft"], latencies.values["queue"]
    slow = ttft >= np.nanquantile(ttft, 0.9) if np.isfinite(ttft).any() else np.zeros(len(ttft), bool)
    ended = max(1, len(ttft))
    return Facts(
        prefill=prefill, decode=decode, interconnect=interconnect, host=host,
        busy=float((steps["end_ns"] - steps["start_ns"]).sum()) / span if span else 0.0,
        pool=float((taken / np.maximum(pool, 1)).max()) if len(pool) else 0.0,
        batch=float(timeline["running"].max() / setup.limits.sequences) if len(pool) else 0.0,
        preempted=float(columns["preemptions"].sum()) / ended,
        queued=float(np.nansum(queue[slow]) / np.nansum(ttft[slow])) if slow.any() and np.nansum(ttft[slow]) else 0.0,
    )


def binding(missed: tuple[str, ...], seen: Facts) -> tuple[str, str]:
    """(the constraint, a sentence that says why). `missed`: objectives that the next larger rate misses."""
    said = f"{STEP - 1:.0%} more requests miss {' and '.join(_word(name) for name in missed)}"
    waits = any(name.startswith(("ttft", "queue", "growth", "goodput", "e2e")) for name in missed)
    if seen.preempted > 0.01 or (waits and seen.pool >= FULL):
        used = f"the KV pool is up to {seen.pool:.0%} in use"
        return "KV memory", f"{said}: {used}, with {seen.preempted:.2f} preemptions a request"
    if waits and seen.batch >= FULL and seen.queued > 0.5:
        return "batch size", f"{said}: all places of the batch are taken and requests wait for one"
    if waits and seen.queued > 0.5 and seen.busy < 0.8:
        return "queueing", f"{said}: bursts queue though the device is idle {1 - seen.busy:.0%} of the time"
    shares = {"prefill compute": seen.prefill, "decode bandwidth": seen.decode, "interconnect": seen.interconnect,
              "host": seen.host}
    name = max(shares, key=shares.__getitem__)
    spent = f"{shares[name]:.0%} of step time is for {_FOR[name]}"
    return name, f"{said}: {spent}, and a step runs {seen.busy:.0%} of the time"


_FOR = {
    "prefill compute": "computing prompts", "decode bandwidth": "reading weights and KV cache to decode",
    "interconnect": "what GPUs send each other", "host": "the engine's own work on the CPU",
}


def unreachable(lowest: Run, objectives: Objectives, setup: Setup) -> str:
    """Why even `lowest`, a run to its end at hardly any load, misses objectives."""
    found, slow = lowest.point.values, []
    for objective in objectives.latency:
        if objective.name in lowest.point.missed:
            is_ = format_duration(found[objective.name])
            slow.append(f"{objective.name} is {is_}, the limit {format_duration(objective.limit_s)}")
    if "goodput" in lowest.point.missed:
        slow.append(f"only {found['goodput']:.1%} of requests keep their limits, {objectives.goodput:.1%} must")
    reasons = [f"with hardly any load {' and '.join(slow)}"] if slow else []
    if "refused" in lowest.point.missed:
        share = f"{found['refused']:.1%} of requests are refused at any rate, the limit is {objectives.refused:.1%}"
        reasons.insert(0, f"{share}: {_refusals(lowest, setup)}")
    return "; ".join(reasons) or "no two neighbouring rates are held"


def _refusals(run: Run, setup: Setup) -> str:
    """Why requests are refused, commonest reason first."""
    columns = {name: column[run.offer.judged] for name, column in run.record.request_columns().items()}
    refused = columns["status"] == REFUSED
    counts = np.bincount(columns["reason"][refused], minlength=len(run.record.reasons))
    said = {
        "too_long": f"are longer than {setup.memory.max_model_len:,} tokens (max_model_len)",
        "never_fits": f"do not fit in the KV pool of {setup.memory.tokens or 0:,} tokens",
        "parent_refused": "follow one that was refused", "empty_prompt": "have no prompt",
    }
    words = [f"{counts[i] / len(refused):.1%} {said.get(name, name)}" for i, name in enumerate(run.record.reasons)
             if counts[i]]
    return ", ".join(word for _, word in sorted(zip(-counts[counts > 0], words, strict=True)))


def _word(name: str) -> str:
    return "a queue that does not grow" if name == "growth" else name


def _step_shares(run: Run, setup: Setup) -> tuple[float, float, float, float]:
    """Shares of step time over steps spread evenly over the time that steps took."""
    steps = run.record.step_columns()
    took = steps["end_ns"] - steps["start_ns"]
    if not len(took):
        return 0.0, 0.0, 0.0, 0.0
    ends = np.cumsum(took)
    places = np.searchsorted(ends, (np.arange(SAMPLED) + 0.5) / SAMPLED * ends[-1])
    total = np.zeros(4)
    for place in places.tolist():
        total += _shares(setup, *(int(steps[c][place]) for c in ("decode", "attended", "chunks", "prefill_tokens")))
    prefill, decode, interconnect, host = (total / SAMPLED).tolist()
    return prefill, decode, interconnect, host


def _shares(setup: Setup, decode: int, attended: int, chunks: int, tokens: int) -> np.ndarray:
    whole = setup.cost.parts(_shape(setup, decode, attended, chunks, tokens))
    alone = setup.cost.parts(_shape(setup, decode, attended, 0, 0)) if decode and chunks else whole
    host, wire = whole["host"].ns, whole["allreduce"].ns if "allreduce" in whole else 0.0
    gpu = sum(cost.ns for cost in whole.values()) - host - wire
    base = 0.0 if not decode else sum(c.ns for name, c in alone.items() if name not in ("host", "allreduce"))
    found = np.array([max(0.0, gpu - base), min(base, gpu), wire, host])
    return found / max(1.0, float(found.sum()))


def _shape(setup: Setup, decode: int, attended: int, chunks: int, tokens: int) -> StepShape:
    """A step like the recorded one: its chunks of equal length, its sequences too."""
    mean = max(1, attended // decode) if decode else 0
    each = tuple(min(mean, window) if window else mean for window in setup.windows)
    one = max(1, tokens // chunks) if chunks else 0
    return StepShape(
        decode=decode, attended=tuple(length * decode for length in each), longest=each, growing=(0,) * len(each),
        longest_grows=(False,) * len(each), chunks=((one, 0),) * chunks, sampled=max(1, decode),
    )
