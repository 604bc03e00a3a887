"""Pareto: what a GPU gives against what a user gets; a click opens a point's scenario."""

from __future__ import annotations

from dataclasses import asdict

import polars as pl
import streamlit as st
from kvsim_app import frame
from kvsim_app.charts.load import pareto
from kvsim_app.load import Point
from kvsim_app.objectives import curve
from kvsim_app.selection import Selection
from kvsim_app.session import choose, selection


def finding(points: list[Point]) -> str:
    """The trade at both ends."""
    known = [p for p in points if p.per_gpu and p.per_user]
    if not known:
        return "No run gave out tokens."
    most, fast = max(known, key=lambda p: p.per_gpu or 0), max(known, key=lambda p: p.per_user or 0)
    return (
        f"A GPU gives at most **{most.per_gpu:,.0f} tokens/s**, with **{most.policy}**, at "
        f"{most.per_user:.3g} tokens/s for each user; a user gets at most **{fast.per_user:.3g}**, with "
        f"**{fast.policy}**, at {fast.per_gpu:,.0f} a GPU."
    )


def page() -> None:
    place = st.container()
    found = curve()
    with place:
        frame.header("Pareto", finding(found.points))
        frame.trust(tiers=found.tiers)
    st.caption(
        "Up and to the right is better. Each line goes from low to high rates; click a point to open its scenario."
    )
    event = st.altair_chart(
        pareto(found.points), width="stretch", key="pareto", on_select="rerun", selection_mode="point"
    )
    _open(event)
    frame.download(pl.DataFrame([asdict(point) for point in found.points]), "pareto")


def _open(event: dict) -> None:
    """Offer the scenario of the point that was clicked."""
    picked = (event.get("selection") or {}).get("point") or []
    if not picked:
        return
    policy, scale = picked[0]["run"], float(picked[0]["scale"])
    base = selection().base
    if st.button(f"Open {policy} at {scale:g} × the rate", icon=":material/open_in_new:", type="primary"):
        choose(Selection(base.replace(rate_scale=base.rate_scale * scale), (policy,)))
        st.switch_page("views/compare.py")


page()
