"""Memory anatomy: what a GPU's bytes are, and what the KV pool holds over time."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.runs import one_of, selected

from kvsim.report.charts import memory
from kvsim.report.data import memory_over_time
from kvsim.result import Result
from kvsim.units import format_bytes


def shares(runs: Mapping[str, Result]) -> pl.DataFrame:
    """The pool's shares over time, a row a bin of time and run."""
    parts = []
    for name, result in runs.items():
        series = memory_over_time(result)
        if series.values:
            columns = dict(series.values.items())
            parts.append(pl.DataFrame({"run": [name] * (len(series.time) - 1), "t_s": series.time[:-1], **columns}))
    return pl.concat(parts) if parts else pl.DataFrame({"run": [], "t_s": []})


def page() -> None:
    runs = selected()
    frame.header("Memory anatomy", findings.anatomy(runs))
    frame.trust(runs)
    frame.show(
        memory.bars(runs),
        "anatomy-bars",
        "The KV pool of each run",
        frame.definitions("used", "reserved", "internal", "cached", "external", "free", "memory shares"),
    )
    name, result = one_of(runs, "anatomy")
    chart = memory.over_time(result)
    if chart is None:
        st.info(f"**{name}** keeps no cache, so its pool stays empty.", icon=":material/info:")
    else:
        frame.show(chart, "anatomy-time", f"Over time: {name}")
    saved = result.summary["memory"]["shared_saved_bytes"]
    if saved:
        st.caption(
            f"Sharing saves {format_bytes(saved)} on average: bytes that several requests use and that are "
            "stored once.",
            help=frame.definitions("shared saved"),
        )
    plans = {n: r.run["memory_plan"] for n, r in runs.items() if (r.run.get("memory_plan") or {}).get("total_bytes")}
    if plans:
        frame.show(
            memory.plan(plans),
            "anatomy-plan",
            "One GPU before the first request",
            "Weights, the peak of activations, what the engine and CUDA keep, and what is left for the cache.",
        )
    frame.download(shares(runs), "memory")


page()
