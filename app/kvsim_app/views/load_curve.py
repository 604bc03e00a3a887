"""Load curve: latency and goodput as the rate rises, a line a policy."""

from __future__ import annotations

from dataclasses import asdict

import polars as pl
import streamlit as st
from kvsim_app import findings, frame
from kvsim_app.charts import load as charts
from kvsim_app.objectives import curve


def page() -> None:
    place = st.container()
    found = curve()
    with place:
        frame.header("Load curve", findings.load_curve(found.capacities))
        frame.trust(tiers=found.tiers)
    knees = {capacity.policy: capacity.rate for capacity in found.capacities if not capacity.beyond}
    st.caption("Dashed orange: the objective. Dotted, in a policy's colour: the rate up to which it holds all of them.")
    left, right = st.columns(2)
    with left:
        frame.show(
            charts.curve(found.points, "ttft_p99", "TTFT p99", found.limits["ttft_p99"], knees),
            "load-ttft",
            "Time to first token",
            frame.definitions("TTFT"),
        )
        frame.show(
            charts.curve(found.points, "itl_p99", "ITL p99", None, knees),
            "load-itl",
            "Time between tokens",
            frame.definitions("ITL"),
        )
    with right:
        frame.show(
            charts.curve(found.points, "tpot_p99", "TPOT p99", found.limits["tpot_p99"], knees),
            "load-tpot",
            "Time per output token",
            frame.definitions("TPOT"),
        )
        frame.show(
            charts.curve(found.points, "goodput", "requests/s", None, knees),
            "load-goodput",
            "Goodput",
            frame.definitions("goodput"),
        )
    frame.download(pl.DataFrame([asdict(point) for point in found.points]), "load-curve")


page()
