"""Metrics against values worked out by hand, and against NumPy on the expanded data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import fake_result
from hypothesis import given
from hypothesis import strategies as st

from kvsim import metrics
from kvsim.result import REQUESTS, STEPS, TIMELINE, Result
from kvsim.units import NS_PER_S

S = NS_PER_S


def rows(names: tuple[str, ...], *values: dict[str, Any], **rest: Any) -> dict[str, list[Any]]:
    return {name: [row.get(name, rest.get(name, 0)) for row in values] for name in names}


@pytest.fixture
def small() -> Result:
    """Three requests: 3 tokens out, 1 token out, none out; a refused one. Two replicas."""
    requests = rows(
        REQUESTS,
        {"id": 0, "arrival_ns": 1 * S, "scheduled_ns": 2 * S, "first_token_ns": 3 * S, "last_token_ns": 7 * S,
         "prompt_tokens": 10, "output_tokens": 3, "cached_tokens": 4, "preemptions": 1, "recomputed_tokens": 5},
        {"id": 1, "arrival_ns": 1 * S, "scheduled_ns": 1 * S, "first_token_ns": 2 * S, "last_token_ns": 2 * S,
         "prompt_tokens": 20, "output_tokens": 1, "replica": 1},
        {"id": 2, "arrival_ns": 2 * S, "scheduled_ns": 5 * S, "first_token_ns": -1, "last_token_ns": 11 * S,
         "prompt_tokens": 10, "output_tokens": 0},
        {"id": 3, "arrival_ns": 2 * S, "scheduled_ns": -1, "first_token_ns": -1, "last_token_ns": -1,
         "prompt_tokens": 99, "output_tokens": 9, "status": 1, "reason": 0, "replica": -1},
        session=-1, reason=-1,
    )  # fmt: skip
    timeline = rows(
        TIMELINE,
        {"t_ns": 1 * S, "used": 100, "free": 0},
        {"t_ns": 6 * S, "used": 50, "reserved": 30, "free": 20, "shared_saved": 8},
        {"t_ns": 6 * S, "replica": 1, "used": 60, "internal": 20, "free": 20},
    )
    steps = rows(STEPS, {"start_ns": 2 * S, "steps": 1}, {"start_ns": 3 * S, "steps": 2})
    run = {"counters": {"prefill": 45, "decode": 2, "evicted_blocks": 0, "swapped_bytes": 0}}
    return Result.from_columns(run, requests, timeline, steps, ([3 * S, 1 * S], [1, 1]), ["too_long"])


def test_counts_and_throughput(small: Result) -> None:
    s = small.summary
    assert s["requests"] == {"total": 4, "completed": 3, "refused": 1, "refused_reasons": {"too_long": 1}}
    assert s["duration_s"] == 10.0
    assert s["throughput"] == {"requests_per_s": 0.3, "output_tokens_per_s": 0.4, "total_tokens_per_s": 4.4}
    assert s["computed_tokens"] == {"prefill": 45, "decode": 2, "recomputed": 5}
    assert s["cache"] == {"prefix_hit_share": 0.1, "evicted_blocks": 0, "preemptions": 1, "swapped_bytes": 0}
    assert s["steps"] == 3


def test_latencies(small: Result) -> None:
    latency = small.summary["latency_s"]
    assert (latency["ttft"]["mean"], latency["ttft"]["p50"], latency["ttft"]["max"]) == (1.5, 1.5, 2.0)
    assert latency["ttft"]["p90"] == pytest.approx(1.9)
    assert set(latency["tpot"].values()) == {2.0}, "one output token has no TPOT"
    assert (latency["itl"]["p50"], latency["itl"]["mean"]) == (2.0, 2.0)
    assert (latency["e2e"]["p50"], latency["e2e"]["max"]) == (6.0, 9.0), "zero output: ends with its prefill"
    assert latency["queue"]["mean"] == pytest.approx(4 / 3)


def test_memory_is_weighted_by_time_and_counts_idle_replicas(small: Result) -> None:
    # span 1 s … 11 s. Replica 0: used 100 for 5 s, 50 for 5 s. Replica 1: empty for 5 s, used 60 for 5 s.
    mean = small.summary["memory"]["mean"]
    expected = {"used": 0.525, "reserved": 0.075, "internal": 0.05, "cached": 0.0, "external": 0.0, "free": 0.35}
    assert mean == pytest.approx(expected)
    assert small.summary["memory"]["shared_saved_bytes"] == pytest.approx(2.0)
    assert small.summary["memory"]["peak_used_share"] == 1.0


def test_goodput(small: Result) -> None:
    assert metrics.goodput(small, {"ttft": 1.0}) == {"requests_per_s": 0.2, "share": 0.5}
    assert metrics.goodput(small, {"ttft": 2.0, "tpot": 1.0, "e2e": 5.0}) == {"requests_per_s": 0.1, "share": 0.25}


def test_an_empty_run_is_null_not_nan() -> None:
    empty = Result.from_columns({}, rows(REQUESTS), rows(TIMELINE), rows(STEPS), ([], []))
    text = json.dumps(empty.summary, allow_nan=False)
    assert empty.summary["duration_s"] is None
    assert empty.summary["latency_s"]["itl"]["p99"] is None
    assert '"completed": 0' in text


def test_summary_has_the_contract_keys() -> None:
    s = fake_result().summary
    assert list(s) == [
        "schema", "requests", "duration_s", "throughput", "latency_s", "interval", "memory", "computed_tokens",
        "cache", "steps", "provenance",
    ]  # fmt: skip
    assert list(s["latency_s"]) == ["ttft", "tpot", "itl", "e2e", "queue"]
    assert all(list(d) == ["mean", "p50", "p90", "p95", "p99", "max"] for d in s["latency_s"].values())
    assert list(s["memory"]) == [
        "kv_capacity_bytes", "kv_blocks", "kv_tokens", "peak_used_share", "mean", "shared_saved_bytes",
    ]  # fmt: skip
    assert sum(s["memory"]["mean"].values()) == pytest.approx(1)


def test_no_interval_no_key() -> None:
    result = fake_result()
    del result.run["interval"]
    assert "interval" not in result.summary


def test_objectives_add_goodput(small: Result) -> None:
    assert "goodput" not in small.summary
    small.run["slo"] = {"ttft": 1.0}
    assert small.summary["goodput"] == {"requests_per_s": 0.2, "share": 0.5}


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=30))
def test_weighted_percentiles_are_those_of_the_expanded_data(pairs: list[tuple[int, int]]) -> None:
    values, counts = (np.array(column) for column in zip(*sorted(pairs), strict=True))
    expanded = np.repeat(values.astype(float), counts)
    got = metrics.weighted_distribution(values.astype(float), counts)
    for name, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert got[name] == pytest.approx(np.percentile(expanded, share))
    assert (got["mean"], got["max"]) == (pytest.approx(expanded.mean()), expanded.max())


def test_the_document_says_what_the_code_says() -> None:
    document = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for name, text in metrics.DEFINITIONS.items():
        assert f"| {name} | {text} |" in document
