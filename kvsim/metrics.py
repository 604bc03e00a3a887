"""Every metric, defined once: what `simulate --json`, the tables, the report and the app show.

docs/metrics.md is written from DEFINITIONS (a test holds the two together). Percentiles interpolate linearly between
order statistics, over completed requests; what is undefined is None, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvsim.units import NS_PER_S

if TYPE_CHECKING:
    from kvsim.result import Result

DEFINITIONS = {
    "TTFT": "Time to first token = first token − arrival; queueing is included. A request for zero tokens has none.",
    "queue": "First scheduled − arrival.",
    "TPOT": "Time per output token = (last token − first token) ÷ (output tokens − 1). Undefined for one output token.",
    "ITL": "Inter-token latency: every gap between two tokens of a request, pooled over all requests.",
    "E2E": "End to end = last token − arrival. A request for zero tokens ends with its prefill.",
    "duration": "First arrival to last completion. Throughputs divide by it.",
    "throughput": "Completed requests, their output tokens, or all their tokens, a second. "
    "Preempted and recomputed work is never counted.",
    "rate": "Of a trace: requests ÷ the time between its first and last beginning of a conversation (a request without "
    "one is its own), which is what arrives a second when such conversations have been beginning for long. Of a run of "
    "`kvsim plan`: what did arrive a second in its judged period (plan.md).",
    "goodput": "Requests a second that meet every objective. An undefined latency misses none.",
    "hit share": "Prompt tokens found in the cache ÷ prompt tokens of admitted requests.",
    "computed tokens": "Tokens that went through the model: in prefill, in decode, and of these "
    "those computed again after a preemption.",
    "used": "Bytes of the KV pool that hold a token; a shared block counts once.",
    "reserved": "Allocated and not yet filled, but it will be.",
    "internal": "Allocated and never will be filled.",
    "cached": "Idle prefix blocks, reclaimable at once.",
    "external": "Contiguous layouts: free bytes outside the largest hole. Paged layouts have none.",
    "free": "The largest hole, or all free blocks.",
    "memory shares": "Used, reserved, internal, cached, external and free add up to the pool. "
    "Their means are weighted by time, from the first arrival to the last completion.",
    "shared saved": "Bytes that more than one sequence uses and that are stored once; in no sum.",
    "refused": "Requests that can never run, counted by reason: never dropped in silence.",
    "interval": "The 90 % interval: two more runs at both ends of the cost model's common error, "
    "widened by its independent part.",
}

_QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")

Float = NDArray[np.float64]


def latencies(requests: pl.DataFrame) -> pl.DataFrame:
    """TTFT, TPOT, E2E and queue of each completed request, in seconds: float64 columns, null where undefined."""
    first, last, arrival = pl.col("first_token_ns"), pl.col("last_token_ns"), pl.col("arrival_ns")
    return requests.filter(pl.col("status") == "completed").select(
        ttft=(first - arrival) / NS_PER_S,
        tpot=pl.when(pl.col("output_tokens") > 1).then((last - first) / (pl.col("output_tokens") - 1) / NS_PER_S),
        e2e=(last - arrival) / NS_PER_S,
        queue=(pl.col("scheduled_ns") - arrival) / NS_PER_S,
    )


def distribution(values: pl.Series) -> dict[str, float | None]:
    """Mean, percentiles and maximum of a column; nulls are left out."""
    data = np.sort(values.drop_nulls().to_numpy())
    if not len(data):
        return dict.fromkeys(("mean", *_QUANTILES, "max"))
    points = np.quantile(data, list(_QUANTILES.values())).tolist()
    return {"mean": float(data.mean()), **dict(zip(_QUANTILES, points, strict=True)), "max": float(data[-1])}


def weighted_distribution(values: Float, counts: NDArray[np.int64]) -> dict[str, float | None]:
    """The same as `distribution` of a column in which each of the sorted `values` stands `counts` times."""
    if not len(values):
        return dict.fromkeys(("mean", *_QUANTILES, "max"))
    ends = np.cumsum(counts)
    total = int(ends[-1])
    # not `values @ counts`: BLAS adds in an order that depends on its threads
    out: dict[str, float | None] = {"mean": float((values * counts).sum()) / total}
    for name, share in _QUANTILES.items():
        place = share * (total - 1)
        below = int(place)
        low, high = values[np.searchsorted(ends, [below, min(below + 1, total - 1)], side="right")]
        out[name] = float(low + (high - low) * (place - below))
    return {**out, "max": float(values[-1])}


def span_ns(result: Result) -> tuple[int, int] | None:
    """(first arrival, last completion); None where nothing completed."""
    done = result.requests.filter(pl.col("status") == "completed")
    if done.is_empty():
        return None
    first, last = result.requests["arrival_ns"].min(), done["last_token_ns"].max()
    return int(first), int(last)  # type: ignore[arg-type]


def goodput(result: Result, limits_s: Mapping[str, float]) -> dict[str, float | None]:
    """Requests a second, and share of all requests, that meet each limit of ttft, tpot, e2e or queue, in seconds."""
    met = pl.all_horizontal(pl.col(name).is_null() | (pl.col(name) <= limit) for name, limit in limits_s.items())
    good = int(latencies(result.requests).select(met.sum()).item())
    return {
        "requests_per_s": _ratio(good, _duration_s(result)),
        "share": _ratio(good, result.requests.height),
    }


def memory_means(result: Result) -> dict[str, float]:
    """Mean bytes of every memory category and of shared_saved, over the span and all replicas, weighted by time.

    Empty where there is no timeline. A replica is empty before its first sample.
    """
    from kvsim.result import MEMORY

    span = span_ns(result)
    if span is None or result.timeline.is_empty() or span[0] == span[1]:
        return {}
    first, last = span
    begin = pl.col("t_ns").clip(first, last)
    weighted = result.timeline.sort("replica", "t_ns", maintain_order=True).with_columns(
        begin=begin, weight=begin.shift(-1, fill_value=last).over("replica") - begin
    )
    columns = (*MEMORY, "shared_saved")
    sums = weighted.select((pl.col(c) * pl.col("weight").cast(pl.Float64)).sum() for c in columns).row(0, named=True)
    leads = weighted.group_by("replica").agg(
        lead=(pl.col("begin").first() - first) * pl.sum_horizontal(MEMORY).first().cast(pl.Float64)
    )
    sums["free"] += leads["lead"].sum()
    return {name: float(value) / (last - first) / leads.height for name, value in sums.items()}


def summary(result: Result) -> dict[str, Any]:
    """The object of `kvsim simulate --json` (docs/metrics.md says what each number means)."""
    requests = result.requests
    done = requests.filter(pl.col("status") == "completed")
    admitted = requests.filter(pl.col("scheduled_ns").is_not_null())
    refused = requests.filter(pl.col("status") == "refused")
    counters: Mapping[str, Any] = result.run.get("counters") or {}
    duration = _duration_s(result)
    tokens_in, tokens_out = int(done["prompt_tokens"].sum()), int(done["output_tokens"].sum())
    failed = requests.height - done.height - refused.height
    return {
        "schema": 1,
        "requests": {
            "total": requests.height,
            "completed": done.height,
            "refused": refused.height,
            "refused_reasons": dict(refused["reason"].value_counts().sort("reason").iter_rows()),
            **({"failed": failed} if failed else {}),
        },
        "duration_s": duration,
        "throughput": {
            "requests_per_s": _ratio(done.height, duration),
            "output_tokens_per_s": _ratio(tokens_out, duration),
            "total_tokens_per_s": _ratio(tokens_in + tokens_out, duration),
        },
        "latency_s": result.latency,
        **({"interval": result.run["interval"]} if result.run.get("interval") else {}),
        **({"goodput": goodput(result, result.run["slo"])} if result.run.get("slo") else {}),
        "memory": _memory(result),
        "computed_tokens": {
            "prefill": counters.get("prefill"),
            "decode": counters.get("decode"),
            "recomputed": int(requests["recomputed_tokens"].sum()),
        },
        "cache": {
            "prefix_hit_share": _ratio(int(admitted["cached_tokens"].sum()), int(admitted["prompt_tokens"].sum())),
            "evicted_blocks": counters.get("evicted_blocks"),
            "preemptions": int(requests["preemptions"].sum()),
            "swapped_bytes": counters.get("swapped_bytes"),
        },
        **({"cluster": _cluster(counters)} if "replica_ns" in counters else {}),
        "steps": int(result.steps["steps"].sum()),
        "provenance": result.run.get("provenance"),
    }


def latency(result: Result) -> dict[str, dict[str, float | None]]:
    """Distributions of every latency, in seconds."""
    columns = latencies(result.requests)
    gaps = weighted_distribution(
        result.itl["gap_ns"].to_numpy().astype(np.float64) / NS_PER_S, result.itl["count"].to_numpy()
    )
    return {name: gaps if name == "itl" else distribution(columns[name]) for name in LATENCIES}


def _cluster(counters: Mapping[str, Any]) -> dict[str, Any]:
    """What became of requests on replicas that failed, and how long replicas were there, all together."""
    hours = counters["replica_ns"] / NS_PER_S / 3600
    return {"retried": counters["retried"], "lost": counters["lost"], "replica_hours": hours}


def _memory(result: Result) -> dict[str, Any]:
    from kvsim.result import MEMORY

    plan: Mapping[str, Any] = result.run.get("memory_plan") or {}
    means = memory_means(result)
    pool = sum(means.get(name, 0.0) for name in MEMORY)
    peak = result.timeline.select((pl.col("used") / pl.sum_horizontal(MEMORY)).fill_nan(None).max()).item()
    return {
        "kv_capacity_bytes": plan.get("kv_bytes"),
        "kv_blocks": plan.get("kv_blocks"),
        "kv_tokens": plan.get("kv_tokens"),
        "peak_used_share": peak,
        "mean": {name: _ratio(means.get(name, 0.0), pool) for name in MEMORY},
        "shared_saved_bytes": means.get("shared_saved"),
    }


def _duration_s(result: Result) -> float | None:
    span = span_ns(result)
    return (span[1] - span[0]) / NS_PER_S if span else None


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
