"""Memory map: whose bytes are where, over time: fragmentation made visible."""

from __future__ import annotations

import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.runs import one_of, selected

from kvsim.report import data
from kvsim.report.charts import memory


def page() -> None:
    runs = selected()
    mapped = {name: result for name, result in runs.items() if not result.memory_map.is_empty()}
    if not mapped:
        frame.header("Memory map", "None of these runs recorded who holds which bytes.")
        frame.trust(runs)
        st.info(
            "A map is recorded by simulations whose policy keeps a pool: choose contiguous, buddy, best-fit or "
            "paged in the sidebar. Measured runs and the uncached policy have none.",
            icon=":material/info:",
        )
        return
    place = st.container()
    name, result = one_of(mapped, "map")
    with place:
        frame.header("Memory map", findings.memory_map(name, result))
        frame.trust({name: result})
    times = memory.moments(result)
    at = times[len(times) // 2]
    if len(times) > 1:
        at = st.select_slider("Moment", times, value=at, format_func=frame.duration, key=f"map-at-{name}")
    whole = st.toggle("Whole pool", value=True, key="map-whole", help="Off: only the bytes that were ever used.")
    high = max(map(data.pool_bytes, mapped.values())) if whole else None  # one scale for all, to compare by eye
    chart = memory.address_map(result, at, high=high)
    if chart is not None:
        frame.show(
            chart,
            "map-address",
            "Address against time, a colour a request",
            "Each rectangle is a piece of the pool that one request holds. Grey is an idle prefix block. Blank space "
            "between rectangles is free: external fragmentation is blank space in many small gaps.",
        )
    frame.show(
        memory.block_grid(result, at, high),
        "map-grid",
        f"The pool at {frame.duration(at)}, read like a page",
        f"Every cell is an equal part of {'the pool' if whole else 'the bytes that were ever used'}; its colour is the "
        "request that holds its middle. Hover to see which.",
    )
    frame.download(result.memory_map, "memory-map")


page()
