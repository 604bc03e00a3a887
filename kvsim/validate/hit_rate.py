"""Hit-rate rung: published replays of a trace through a prefix cache, against our offline replay of the same trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kvsim.cache.reuse import RANKS, Blocks, leading_hits, reused_tokens
from kvsim.trace.types import Trace
from kvsim.validate.cases import Case, read_cases
from kvsim.validate.report import Goal, Report, Row

NAMES = {"conversation": "conversation", "synthetic": "synthetic", "tool&agent": "toolagent",
         "Mooncake open one-hour trace": "mooncake_trace"}  # fmt: skip
"""how a case calls a trace, and what its file's name contains"""

GOALS = (Goal("", "max_abs", 0.1),)
"""how hits are counted (blocks or tokens, partial blocks or not) is worth up to a tenth; cases rarely say"""


def validate_hit_rate(path: Path, trace: Trace) -> Report:
    """Predict every hit-rate case of a file that is about `trace`."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    cut: dict[int, Blocks] = {}
    for case in read_cases(path, "hit_rate"):
        other = case["workload"].get("other") or {}
        policy = other.get("policy", "LRU").lower()
        file = next((part for name, part in NAMES.items() if other.get("trace", "").startswith(name)), None)
        if "hit_rate" not in case["checkable"]:
            skipped[f"not checkable: {case.get('why_not') or 'the file says so'}"] += 1
        elif file is None or file not in trace.name:
            skipped[f"needs another trace: {other.get('trace')}"] += 1
        elif policy not in RANKS:
            skipped[f"eviction {other['policy']} is not modelled"] += 1
        else:
            size = case["workload"]["block_size"]
            if size not in cut:
                cut[size] = Blocks.of(trace, size, partial=True)
            rows.append(_predict(case, cut[size], policy))
    return Report("hit_rate", rows, dict(skipped), GOALS)


def _predict(case: Case, blocks: Blocks, policy: str) -> Row:
    other = case["workload"]["other"]
    capacity = other.get("capacity_blocks")
    if other.get("capacity_tokens"):
        capacity = other["capacity_tokens"] // blocks.block_size
    if case["metric"] == "block_hit_rate":
        predicted, note = sum(leading_hits(blocks, capacity, policy)) / len(blocks.keys), "hits of blocks"
    else:
        tokens = int(blocks.prompt_tokens.sum())
        predicted, note = reused_tokens(blocks, capacity, policy) / tokens, "hits of tokens"
        if case["metric"] == "share_of_max_hit_rate":
            predicted /= reused_tokens(blocks, None) / tokens
    return Row(case["id"], "hit_rate", case["metric_id"], predicted, float(case["value_si"]), note=note)
