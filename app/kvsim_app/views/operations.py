"""Operations: the panels of an engine's dashboard, from the simulated run."""

from __future__ import annotations

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.runs import opened

from kvsim.report.charts import operations
from kvsim.report.data import load_over_time, memory_over_time


def page() -> None:
    _, result = opened("Operations", findings.operations)
    _numbers(result.summary)
    rates = operations.rates(result)
    load, memory = load_over_time(result, 120), memory_over_time(result, 120)
    panels = [
        ("Time to first token", operations.quantiles(result, "ttft"), frame.definitions("TTFT")),
        ("Time per output token", operations.quantiles(result, "tpot"), frame.definitions("TPOT")),
        ("End to end", operations.quantiles(result, "e2e"), frame.definitions("E2E")),
        ("Queue", operations.quantiles(result, "queue"), frame.definitions("queue")),
        (
            "Token throughput",
            operations.panel(rates, ("prompt tokens", "generation tokens"), "tokens/s"),
            frame.definitions("throughput"),
        ),
        (
            "Arrivals and completions",
            operations.panel(rates, ("arrivals", "completions"), "requests/s"),
            "Requests a second.",
        ),
    ]
    if load.values:
        chart = operations.panel(load, ("running", "waiting"), "requests")
        panels.append(("Scheduler state", chart, "Running and waiting."))
    if memory.values:
        shown = [name for name in ("used", "cached") if memory.values[name].any()] or ["used"]
        panels.append(
            (
                "Cache utilization",
                operations.panel(memory, shown, "of the KV pool", ".1%"),
                frame.definitions("used", "cached"),
            )
        )
    columns = st.columns(2)
    for number, (title, chart, help) in enumerate(p for p in panels if p[1] is not None):
        with columns[number % 2]:
            frame.show(chart, f"operations-{title}", title, help)
    frame.download(pl.DataFrame({"t_s": rates.time[:-1], **rates.values}), "operations")


def _numbers(summary: dict) -> None:
    cache, requests = summary["cache"], summary["requests"]
    values = {
        "Completed": (f"{requests['completed']:,}", "refused"),
        "Output tokens/s": (f"{summary['throughput']['output_tokens_per_s']:,.0f}", "throughput"),
        "TTFT p99": (frame.duration(summary["latency_s"]["ttft"]["p99"]), "TTFT"),
        "TPOT p50": (frame.duration(summary["latency_s"]["tpot"]["p50"]), "TPOT"),
        "Prefix hits": (f"{(cache['prefix_hit_share'] or 0):.1%}", "hit share"),
        "Preemptions": (f"{cache['preemptions'] or 0:,}", "computed tokens"),
    }
    for column, (label, (value, definition)) in zip(st.columns(len(values)), values.items(), strict=True):
        column.metric(label, value, help=frame.definitions(definition))


page()
