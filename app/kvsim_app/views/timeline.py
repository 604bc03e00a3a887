"""Timeline: every request's life, with the batch and the cache below it."""

from __future__ import annotations

import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.charts import timeline
from kvsim_app.runs import one_of, selected


def page() -> None:
    runs = selected()
    place = st.container()
    name, result = one_of(runs, "timeline")
    with place:
        frame.header("Timeline", findings.timeline(name, result))
        frame.trust({name: result})
    done = result.summary["requests"]["completed"]
    if not done:
        return
    first = 0
    if done > timeline.ROWS:
        first = st.slider(
            "From request",
            0,
            done - timeline.ROWS,
            min(done // 3, done - timeline.ROWS),
            key=f"timeline-from-{name}",
            help=f"{timeline.ROWS} requests are drawn one by one.",
        )
    frame.show(
        timeline.gantt(result, first),
        "timeline-gantt",
        "Drag in the lowest panel to zoom all three",
        frame.definitions("queue", "TTFT", "E2E", "used"),
    )
    frame.download(timeline.phases(result, 0, done), "timeline")


page()
