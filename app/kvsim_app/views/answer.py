"""Answer: how many GPUs the traffic needs, or what rate they hold, and at what cost."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.charts import answer as charts
from kvsim_app.objectives import ask_limits, held, planned, rate
from kvsim_app.session import selection, step_error

from kvsim.plan.answer import TOO_SHORT

Row = dict[str, Any]


def page() -> None:
    planned()
    place = st.container()
    ask_limits()
    left, right = st.columns(2)
    target = left.number_input(
        "Requests a second to serve",
        0.01,
        1e6,
        float(f"{rate() * 8:.2g}"),
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
    found = held()
    _, band = step_error(selection().base)
    sentence, rows = findings.answer(found, target, price, band)
    with place:
        frame.header("Answer", sentence)
        frame.trust(tiers={str(one.candidate.tier) for one in found})
    if not rows:
        return
    _numbers(rows[0])
    frame.show(
        charts.held(rows, selection().policies),
        "answer-held",
        "What a replica holds",
        "Line: the 90 % interval. Step times that are all off by a factor move the rate by its inverse.",
    )
    st.table(_table(rows))
    notes = dict.fromkeys(f"{note[0].upper()}{note[1:]}." for one in found for note in one.notes)
    requests = max(one.candidate.requests for one in found)
    st.caption(
        f"As `kvsim plan` answers it: steady traffic, repeated for ever, with {requests:,} requests judged at every "
        "rate, whatever duration the other pages look at. The estimate is that of one replica times their number; a "
        "router's imbalance comes on top. " + " ".join(notes)
    )
    frame.download(pl.DataFrame(rows, infer_schema_length=None), "answer")


def _table(rows: list[Row]) -> pl.DataFrame:
    """Rows as a person reads them."""
    return pl.DataFrame(
        [
            {
                "policy": row["policy"],
                "GPUs": _text(row["GPUs"], ","),
                "requests/s held": _text(row["rate held"], ".3g"),
                "90 % interval": f"{row['low']:.3g} to {row['high']:.3g}" if row["low"] else "–",
                "headroom": _text(row["headroom"], ".0%"),
                "per M output tokens": _text(row["cost"], ",.2f"),
                "kWh per M tokens": _text(row["energy"], ".2g"),
                "what gives way first": f"**{row['limited by'] or 'no rate'}**: {row['why']}",
            }
            for row in rows
        ]
    )


def _text(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _numbers(best: Row) -> None:
    columns = st.columns(4)
    holds = best["rate held"]
    none = "unknown" if best["limited by"] == TOO_SHORT else "none"
    columns[0].metric("GPUs", best["GPUs"] if best["GPUs"] is not None else none)
    columns[1].metric(
        "Rate held by a replica",
        f"{holds:.3g} /s" if holds else none,
        help=f"90 % interval {best['low']:.3g} to {best['high']:.3g}" if holds else None,
    )
    columns[2].metric(
        "Headroom",
        f"{best['headroom']:.0%}" if best["headroom"] is not None else none,
        help="What all replicas hold, over the rate to serve.",
    )
    cost = best["cost"]
    columns[3].metric(
        "Per million output tokens",
        f"{cost:,.2f}" if cost is not None else "–",
        help="Put in the price of a GPU and hour to see it." if cost is None else None,
    )


page()
