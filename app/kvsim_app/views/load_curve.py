"""Load curve: latency and goodput as the rate rises, a line a policy."""

from __future__ import annotations

from dataclasses import asdict

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.objectives import ask_limits, held, planned, points

from kvsim.report.charts import load as charts


def page() -> None:
    planned()
    place = st.container()
    limits = ask_limits()
    found, tried = held(), points()
    with place:
        frame.header("Load curve", findings.load_curve(found))
        frame.trust(tiers={point.tier for point in tried})
    knees = {one.policy: one.rate for one in found if one.rate}
    st.caption("Dashed orange: the objective. Dotted, in a policy's colour: the rate up to which it holds all of them.")
    panels = (
        ("ttft_p99", "TTFT p99", limits["ttft_p99"], "Time to first token", "TTFT"),
        ("tpot_p99", "TPOT p99", limits["tpot_p99"], "Time per output token", "TPOT"),
        ("itl_p99", "ITL p99", None, "Time between tokens", "ITL"),
        ("goodput", "requests/s", None, "Goodput", "goodput"),
    )
    columns = st.columns(2)
    for number, (metric, axis, limit, title, term) in enumerate(panels):
        with columns[number % 2]:
            lines: dict[str, list[tuple[float, float]]] = {point.policy: [] for point in tried}
            for point in tried:
                if (value := getattr(point, metric)) is not None:
                    lines[point.policy].append((point.rate, value))
            chart = charts.curve(lines, axis, limit, knees, seconds=metric != "goodput")
            frame.show(chart, f"load-{metric}", title, frame.definitions(term))
    frame.download(pl.DataFrame([asdict(point) for point in tried]), "load-curve")


page()
