"""Latencies of runs: distributions, and differences between runs."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np

from kvsim.report import data
from kvsim.report.charts.style import (
    BAD,
    GREY,
    HEIGHT,
    log_axis,
    log_scale,
    records,
    seconds_axis,
    series,
    share_axis,
)
from kvsim.report.palette import SERIES
from kvsim.result import Result

Runs = Mapping[str, Result]

METRICS = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "queue"}


def cdf(runs: Runs, metric: str) -> alt.LayerChart | None:
    """Share of requests (ITL: of gaps) that took at most so long, on a logarithmic axis; dots at the median and the
    99th percentile. None where nothing took any time."""
    curves = {name: data.cdf(result, metric) for name, result in runs.items()}
    points = [
        (name, value, share)
        for name, curve in curves.items()
        for value, share in zip(curve.value, curve.share, strict=True)
        if value > 0
    ]
    if not points:
        return None
    names, values, shares = zip(*points, strict=True)
    marked = [
        (name, at, float(np.interp(share, curve.share, curve.value)), share)
        for name, curve in curves.items()
        for at, share in (("p50", 0.5), ("p99", 0.99))
        if len(curve.value)
    ]
    who, at, place, share = zip(*[mark for mark in marked if mark[2] > 0], strict=True)
    x = alt.X("value:Q", scale=log_scale(values), axis=seconds_axis(METRICS[metric], values))
    y = alt.Y("share:Q", axis=share_axis("share at most"), scale=alt.Scale(domain=[0, 1]))
    said = [
        alt.Tooltip("run:N"),
        alt.Tooltip("value:Q", title="seconds", format=".4~g"),
        alt.Tooltip("share:Q", format=".1%"),
    ]
    source = records(run=names, value=np.array(values, float), share=np.array(shares, float))
    lines = alt.Chart(source, height=HEIGHT).mark_line(interpolate="step-after", strokeWidth=2)
    dots = alt.Chart(records(run=who, at=at, value=np.array(place), share=np.array(share))).mark_point(
        filled=True, size=55, opacity=1
    )
    return alt.layer(
        lines.encode(x=x, y=y, color=series(runs), tooltip=said),
        dots.encode(x=x, y=y, color=series(runs), tooltip=[*said, "at:N"]),
    )


def changes(names: list[str], ratios: list[float], better: list[bool], before: str, after: str) -> alt.LayerChart:
    """Each metric of run `after` over that of run `before`: to the right more, orange worse."""
    words = ["better" if good else "worse" for good in better]
    source = records(metric=names, ratio=np.array(ratios, float), kind=words, from_=np.ones(len(names)))
    order = alt.Y("metric:N", sort=names, title=None, axis=alt.Axis(labelLimit=200))
    scale = alt.X(
        "ratio:Q",
        scale=log_scale([*ratios, 1.0]),
        axis=log_axis(f"{after} ÷ {before}", [*ratios, 1.0]),
    )
    base = alt.Chart(source, height=26 * max(len(names), 3) + 90)
    bars = base.mark_rule(strokeWidth=8, opacity=0.85).encode(
        x=scale,
        x2="from_:Q",
        y=order,
        color=alt.Color(
            "kind:N",
            legend=alt.Legend(title=None, orient="top"),
            scale=alt.Scale(domain=["better", "worse"], range=[SERIES[0], BAD]),
        ),
        tooltip=["metric:N", alt.Tooltip("ratio:Q", format=".3~g", title="ratio")],
    )
    rule = alt.Chart(records(x=[1.0])).mark_rule(strokeDash=[3, 3], opacity=0.6, color=GREY).encode(x="x:Q")
    return alt.layer(bars, rule)
