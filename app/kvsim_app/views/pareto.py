"""Pareto: what a GPU gives against what a user gets; a click opens a point's scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.objectives import planned, points, rate
from kvsim_app.selection import Selection
from kvsim_app.session import choose

from kvsim.report.charts.load import Tried, pareto


def page() -> None:
    chosen = planned()
    found = points()
    frame.header("Pareto", findings.pareto(found))
    frame.trust(tiers={point.tier for point in found})
    st.caption(
        "Up and to the right is better. Each line goes from low to high rates, as far as the replica keeps up; click a "
        "point to open its scenario."
    )
    known = [Tried(p.policy, p.rate, p.per_user, p.per_gpu) for p in found if p.steady and p.per_user and p.per_gpu]
    chart = pareto(known, chosen.policies)
    event = st.altair_chart(chart, width="stretch", key="pareto", on_select="rerun", selection_mode="point")
    _open(chosen, event)
    frame.download(pl.DataFrame([asdict(point) for point in found]), "pareto")


def _open(chosen: Selection, event: Mapping[str, Any]) -> None:
    """Offer the scenario of the point that was clicked."""
    picked = (event.get("selection") or {}).get("point") or []
    if not picked:
        return
    policy, wanted = picked[0]["run"], float(picked[0]["rate"])
    label = f"Open {policy} at {wanted:.3g} requests/s"
    if st.button(label, key="pareto-open", icon=":material/open_in_new:", type="primary"):
        scale = float(f"{chosen.base.rate_scale * wanted / rate():.3g}")
        choose(Selection(chosen.base.replace(rate_scale=scale), (policy,)))
        st.switch_page("views/compare.py")


page()
