"""Timeline: every request's life, with the batch and the cache below it."""

from __future__ import annotations

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.charts import timeline
from kvsim_app.runs import opened, overheard

from kvsim.result import Result


def page() -> None:
    name, result = opened("Timeline", findings.timeline)
    events = overheard(name, result)
    done = result.summary["requests"]["completed"]
    first = 0
    if done > timeline.ROWS:
        most = done - timeline.ROWS
        first = st.slider(
            "From request",
            0,
            most,
            min(_start(result, done), most),
            key=f"timeline-from-{name}",
            help=f"{timeline.ROWS} requests are drawn one by one.",
        )
    frame.show(
        timeline.gantt(result, events, first),
        "timeline-gantt",
        "Drag in the lowest panel to zoom all three",
        frame.definitions("queue", "TTFT", "E2E", "used"),
    )
    st.caption(
        "Each step of a prefill is a bar of its own, every other one paler. *Preempted*: the memory was taken and the "
        "request waits to start over; *swapped*: its cache waits in host memory; *loading*: it comes over the link."
        if events is not None
        else "Of this run only arrival, first scheduling, first and last token are known: prefill is drawn in one "
        "piece, and time lost to preemption counts as decode. Chunks are shown for simulations of one replica "
        "under any scheduler but SGLang's."
    )
    frame.download(lambda: timeline.spans(result, events), "timeline")


def _start(result: Result, done: int) -> int:
    """A place worth looking at: around the request that was preempted most, else a third into the run."""
    preempted = result.requests.filter(pl.col("status") == "completed").sort("arrival_ns")["preemptions"]
    most = preempted.arg_max()
    return max(most - timeline.ROWS // 2, 0) if most is not None and preempted[most] else done // 3


page()
