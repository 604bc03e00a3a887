"""Answer: how many GPUs the traffic needs, or what rate they hold, and at what cost."""

from __future__ import annotations

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.charts.answer import gpus_needed
from kvsim_app.objectives import curve
from kvsim_app.session import selection, step_error

_PRICES = {
    "h100-sxm": 2.5,
    "h100-pcie": 2.2,
    "h200-sxm": 3.2,
    "a100-80-sxm": 1.5,
    "a100-40-sxm": 1.1,
    "l4": 0.5,
    "l40s": 0.9,
    "a10": 0.5,
    "b200": 5.0,
    "mi300x": 2.5,
}
"""$ a GPU and hour to start from; the reader's own price is what counts"""


def page() -> None:
    place = st.container()
    found = curve()
    left, right = st.columns(2)
    device = selection().base.device
    price = left.number_input(
        "$ per GPU and hour",
        0.0,
        1000.0,
        _PRICES.get(device, 1.0),
        0.1,
        key=f"price-{device}",
        help="A round number to start from: put in your own.",
    )
    target = right.number_input(
        "Requests a second to serve",
        0.01,
        1e6,
        round(found.rate * 8, 2),
        key="target",
        help="All replicas together. It starts at eight times the traffic's own rate.",
    )
    sentence, rows = findings.answer(found.capacities, target, found.gpus, price)
    with place:
        frame.header("Answer", sentence)
        frame.trust()
    if not rows:
        return
    _numbers(rows[0])
    frame.show(gpus_needed(rows), "answer-gpus", "GPUs that serve this rate")
    frame_ = pl.DataFrame(_with_interval(rows), infer_schema_length=None)
    st.dataframe(
        frame_,
        hide_index=True,
        width="stretch",
        column_config={
            "rate held": st.column_config.NumberColumn(
                "requests/s held", format="%.3g", help="by one replica, within the objectives"
            ),
            "rate interval": st.column_config.TextColumn("90 % interval"),
            "headroom": st.column_config.NumberColumn(format="percent", help="of all replicas over the rate to serve"),
            "$/M output tokens": st.column_config.NumberColumn(format="$%.2f"),
            "at least": st.column_config.CheckboxColumn(help="held at the highest rate that was tried: it can do more"),
        },
    )
    st.caption(
        "Step times that are all off by a factor move the rate held by its inverse: that is the interval shown. "
        "The estimate is that of one replica times their number; a router's imbalance comes on top."
    )
    frame.download(frame_, "answer")


def _with_interval(rows: list[dict]) -> list[dict]:
    _, band = step_error(selection().base)
    return [
        {
            **row,
            "rate interval": f"{row['rate held'] / band.high:.3g} to {row['rate held'] / band.low:.3g}"
            if row["rate held"]
            else "–",
        }
        for row in rows
    ]


def _numbers(best: dict) -> None:
    columns = st.columns(4)
    _, band = step_error(selection().base)
    held = best["rate held"]
    columns[0].metric("GPUs", best["GPUs"] if best["GPUs"] is not None else "none")
    columns[1].metric(
        "Rate held by a replica",
        f"{held:.3g} /s" if held else "none",
        border=False,
        help=f"90 % interval {held / band.high:.3g} to {held / band.low:.3g}" if held else None,
    )
    columns[2].metric(
        "Headroom",
        f"{best['headroom']:.0%}" if best["headroom"] is not None else "none",
        help="What all replicas hold, over the rate to serve.",
    )
    cost = best["$/M output tokens"]
    columns[3].metric("per million output tokens", f"${cost:,.2f}" if cost is not None else "none")
    st.caption(f"What gives way first: {best['limited by']}.")


page()
