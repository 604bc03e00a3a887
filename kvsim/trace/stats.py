"""What a trace is like: its length, rates, percentiles and how much of its prompts repeats."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_S, seconds


def describe(trace: Trace) -> dict[str, Any]:
    """The object that `kvsim trace info --json` prints.

    Tokens, seconds and requests per second. Percentiles interpolate linearly. `rate_per_s` is rows ÷ duration and
    `duration_s` the time from first to last arrival; both are null where all arrive at once. Rows that wait for a
    parent count at their recorded or expected time. Peak rates use tumbling windows from the first arrival.
    """
    duration = seconds(int(trace.arrival_ns.max() - trace.arrival_ns.min())) if len(trace) else 0.0
    timed = duration > 0
    return {
        "format": trace.format,
        "rows": len(trace),
        "dropped": dict(trace.dropped),
        "duration_s": duration if timed else None,
        "rate_per_s": len(trace) / duration if timed else None,
        "peak_rate_1s": peak_rate(trace, 1) if timed else None,
        "peak_rate_10s": peak_rate(trace, 10) if timed else None,
        "prompt": _percentiles(trace.prompt_tokens),
        "output": _percentiles(trace.output_tokens),
        "block_size": trace.block_size or None,
        "reusable_share": reusable_share(trace),
    }


def peak_rate(trace: Trace, window_s: int) -> float:
    """Most arrivals in one of the windows of `window_s` seconds laid end to end from the first arrival, per second."""
    since = trace.arrival_ns - trace.arrival_ns.min()
    _, counts = np.unique(since // (window_s * NS_PER_S), return_counts=True)
    return float(counts.max()) / window_s


def reusable_share(trace: Trace, *, answers: bool = False) -> float | None:
    """Share of prompt tokens that a cache of unlimited size serves, requests one by one in order; None without ids.

    Counts prefixes that an earlier prompt had. With `answers` also those that continue into an earlier answer, where
    the trace knows that lineage.
    """
    if not trace.has_ids:
        return None
    counts = np.diff(trace.block_start)
    row = np.repeat(np.arange(len(trace), dtype=np.int64), counts)
    ids, ends, prompt = trace.block_ids, trace.all_ends(), np.repeat(trace.prompt_tokens, counts)
    if not answers:
        inside = ends <= prompt
        ids, row, ends, prompt = ids[inside], row[inside], ends[inside], prompt[inside]
    first = np.empty(trace.block_ids.max() + 1, np.int64)
    first[ids[::-1]] = row[::-1]  # the last write wins: the first row that has the id
    seen = first[ids] < row
    hit = np.zeros(len(trace), np.int64)
    np.maximum.at(hit, row[seen], np.minimum(ends, prompt)[seen])
    return float(hit.sum() / trace.prompt_tokens.sum())


def _percentiles(tokens: Int) -> dict[str, float | None]:
    if not len(tokens):
        return dict.fromkeys(("p50", "p90", "p99", "max"))
    p50, p90, p99, most = np.percentile(tokens, (50, 90, 99, 100)).tolist()
    return {"p50": p50, "p90": p90, "p99": p99, "max": most}
