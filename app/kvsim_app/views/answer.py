"""Answer: how many GPUs the traffic needs, or what rate they hold, and at what cost."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.charts import answer as charts
from kvsim_app.objectives import curve
from kvsim_app.session import selection, step_error

Row = dict[str, Any]


def page() -> None:
    place = st.container()
    found = curve()
    left, right = st.columns(2)
    target = left.number_input(
        "Requests a second to serve",
        0.01,
        1e6,
        float(f"{found.rate * 8:.2g}"),
        key="target",
        help="All replicas together. It starts at eight times the traffic's own rate.",
    )
    price = right.number_input(
        "Price of a GPU and hour",
        0.0,
        1000.0,
        None,
        0.1,
        key="price",
        placeholder="yours, for the cost of a token",
        help="In any currency. There is no built-in list: prices change by the week.",
    )
    _, band = step_error(selection().base)
    sentence, rows = findings.answer(found.capacities, target, found.gpus, price, band)
    with place:
        frame.header("Answer", sentence)
        frame.trust(tiers=found.tiers)
    if not rows:
        return
    _numbers(rows[0])
    frame.show(
        charts.held(rows, selection().policies),
        "answer-held",
        "What a replica holds",
        "Line: the 90 % interval. Step times that are all off by a factor move the rate by its inverse.",
    )
    table = pl.DataFrame(rows, infer_schema_length=None).drop("low", "high")
    st.dataframe(
        table,
        hide_index=True,
        width="stretch",
        column_config={
            "rate held": st.column_config.NumberColumn(
                "requests/s held", format="%.3g", help="by one replica, within the objectives"
            ),
            "headroom": st.column_config.NumberColumn(format="percent", help="of all replicas over the rate to serve"),
            "cost": st.column_config.NumberColumn("per M output tokens", format="%.2f"),
            "why": st.column_config.TextColumn(width="large"),
        },
    )
    st.caption(
        "Traffic is sped up by starting conversations closer together; people think as long as before. The estimate "
        "is that of one replica times their number; a router's imbalance comes on top."
    )
    frame.download(table, "answer")


def _numbers(best: Row) -> None:
    columns = st.columns(4)
    rate = best["rate held"]
    columns[0].metric("GPUs", best["GPUs"] if best["GPUs"] is not None else "none")
    columns[1].metric(
        "Rate held by a replica",
        f"{rate:.3g} /s" if rate else "none",
        help=f"90 % interval {best['low']:.3g} to {best['high']:.3g}" if rate else None,
    )
    columns[2].metric(
        "Headroom",
        f"{best['headroom']:.0%}" if best["headroom"] is not None else "none",
        help="What all replicas hold, over the rate to serve.",
    )
    cost = best["cost"]
    columns[3].metric(
        "Per million output tokens",
        f"{cost:,.2f}" if cost is not None else "–",
        help="Put in the price of a GPU and hour to see it." if cost is None else None,
    )
    st.caption(f"What gives way first: **{best['limited by']}**; {best['why']}.")


page()
