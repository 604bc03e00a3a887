"""Fragmentation rung: what the PagedAttention paper (Kwon et al. 2023) saw of KV memory, against our layouts.

Its Figure 2 gives shares of KV memory under Orca (Max, Pow2, Oracle) and vLLM, its Figure 13 how many requests were in
the batch. The caption of Figure 2 names neither trace nor rate, so nothing is tuned: the lengths are those of the given
trace, as many of its first requests as below, and the queue is never empty. Every decode step weighs the same.
The paper's reservation and internal fragmentation are ours; what a buddy block is larger than the reservation, and
what is free, is in its "external fragmentation & others".
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

from kvsim.cache.base import Allocator, Sequence
from kvsim.cache.buddy import Buddy
from kvsim.cache.contiguous import Contiguous
from kvsim.cache.oracle import Oracle
from kvsim.cache.paged import Paged
from kvsim.cache.reserve import Reserve
from kvsim.errors import InputError
from kvsim.trace.types import Trace
from kvsim.validate.cases import Case, read_cases
from kvsim.validate.report import Goal, Report, Row

REQUESTS = 4000
TOKEN = 800 * 1024
"""bytes a token of OPT-13B; shares do not depend on it"""
BLOCK = 16
GOALS = (Goal("used_share", "max_abs", 0.15),)


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares of KV memory in the paper's words, and requests in the batch, means over decode steps."""

    used_share: float
    reserved_share: float
    internal_share: float
    external_share: float
    batched_requests: float


def validate_fragmentation(path: Path, trace: Trace) -> Report:
    """Predict every fragmentation case of a file that `trace`'s lengths (ShareGPT) can tell."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    usages: dict[str, Usage] = {}
    for case in read_cases(path, "fragmentation"):
        metric, work = case["metric_id"], case["workload"]
        other = work.get("other") or {}
        if "fragmentation" not in case["checkable"]:
            skipped[f"not checkable: {case.get('why_not') or 'the file says so'}"] += 1
        elif "ShareGPT" not in other.get("dataset", ""):
            skipped["needs lengths of another data set"] += 1
        elif case.get("metric") == "kv_blocks_saved_by_sharing" and other.get("decoding") == "parallel sampling":
            low, high = other["width_range"]
            saved = shared_blocks(lengths(trace, 2048), range(low, high + 1))
            rows.append(_row(case, "sharing", saved, f"mean over {low} to {high} samples"))
        elif metric in Usage.__slots__:
            tokens, longest = other["kv_slots_tokens"], work["max_model_len"]
            system = case["system"].partition(" as in")[0]
            try:
                if system not in usages:
                    usages[system] = saturated(layout(system, tokens, longest), lengths(trace, longest)[:REQUESTS])
            except InputError as error:
                skipped[str(error)] += 1
                continue
            rate = work.get("request_rate")
            note = f"queue never empty; published at {rate} requests/s" if rate else "queue never empty; rate unknown"
            rows.append(_row(case, metric, getattr(usages[system], metric), note))
        else:
            skipped[f"metric {case.get('metric')} is not predicted"] += 1
    return Report("fragmentation", rows, dict(skipped), GOALS)


def layout(system: str, tokens: int, max_model_len: int) -> Allocator:
    """The layout of one of the paper's systems; its Orcas place by a buddy allocator."""
    pool = tokens * TOKEN
    match system:
        case "Orca (Max)":
            return Reserve(pool_bytes=pool, token_bytes=TOKEN, max_model_len=max_model_len, placement="buddy")
        case "Orca (Pow2)":
            return Buddy(pool_bytes=pool, token_bytes=TOKEN, max_model_len=max_model_len)
        case "Orca (Oracle)":
            return Oracle(pool_bytes=pool, token_bytes=TOKEN, max_model_len=max_model_len, placement="buddy")
        case "vLLM":
            return Paged(blocks=tokens // BLOCK, block_size=BLOCK, token_bytes=TOKEN)
    raise InputError(f"the layout of {system} is not known")


def lengths(trace: Trace, max_model_len: int) -> list[tuple[int, int]]:
    """(prompt, output) of the requests that the model can serve, in order."""
    pairs = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    return [(prompt, output) for prompt, output in pairs if output and prompt + output <= max_model_len]


def saturated(kv: Allocator, requests: list[tuple[int, int]]) -> Usage:
    """Serve the requests in order, as many at a time as fit, until none waits. Prompts take no time; where the next
    tokens do not fit, the latest one starts again, and nobody is admitted before a step has passed."""
    waiting = deque(Sequence(row, prompt, output) for row, (prompt, output) in enumerate(requests))
    running: list[Sequence] = []
    totals, steps = [0.0] * 5, 0
    while waiting:
        _admit(kv, waiting, running)
        if not running:
            if waiting:
                raise InputError(f"a request of {waiting[0].tokens:,} tokens does not fit into {kv.pool_bytes:,} bytes")
            break  # the last ones were done with their first token
        while not (stride := kv.horizon(min(seq.final - seq.base - kv.step for seq in running))):
            seq = running.pop()
            seq.generated += _stop(kv, seq)
            kv.release(seq, finished=False)
            seq.computed = 0
            waiting.appendleft(seq)
        before = _shares(kv)
        kv.advance(stride)
        for i, (start, end) in enumerate(zip(before, _shares(kv), strict=True)):
            totals[i] += (start + end) / 2 * stride  # token counts are linear within a stride
        totals[4] += len(running) * stride
        steps += stride
        for seq in [seq for seq in running if seq.base + kv.step == seq.final]:
            running.remove(seq)
            _stop(kv, seq)
            kv.release(seq, finished=True)
    return Usage(*(total / steps for total in totals))


def shared_blocks(requests: list[tuple[int, int]], widths: range) -> float:
    """Share of blocks that sharing the prompt among n samples saves, counted over all steps: the prompt's full blocks
    are held once instead of n times. Mean over the widths."""
    shares = []
    for width in widths:
        saved = held = 0
        for prompt, output in requests:
            full = prompt // BLOCK
            saved += (width - 1) * full * output
            held += width * sum(-(-tokens // BLOCK) for tokens in range(prompt, prompt + output))
        shares.append(saved / held)
    return sum(shares) / len(shares)


def _admit(kv: Allocator, waiting: deque[Sequence], running: list[Sequence]) -> None:
    while waiting and kv.admit(waiting[0], waiting[0].tokens):
        seq = waiting.popleft()
        seq.computed = seq.tokens
        seq.generated += 1
        if seq.generated == seq.output:
            kv.release(seq, finished=True)
            continue
        seq.base, seq.decoding = seq.computed - kv.step, True
        kv.join(seq)
        running.append(seq)


def _stop(kv: Allocator, seq: Sequence) -> int:
    """`seq` no longer decodes; returns the tokens it has generated since it joined."""
    computed = seq.base + kv.step
    grown, seq.computed, seq.decoding = computed - seq.computed, computed, False
    kv.leave(seq)
    return grown


def _shares(kv: Allocator) -> list[float]:
    """used, reserved, internal, external and others; and a place for the batch."""
    stats = kv.stats()
    padding = kv.padding if isinstance(kv, Contiguous) else 0
    used, reserved, internal = stats.used, stats.reserved, stats.internal - padding
    parts = used, reserved, internal, stats.pool - used - reserved - internal
    return [*(part / stats.pool for part in parts), 0.0]


def _row(case: Case, group: str, predicted: float, note: str) -> Row:
    return Row(case["id"], group, case["metric_id"], predicted, float(case["value_si"]), note=note)
