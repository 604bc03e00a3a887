"""Latencies of runs: distributions, and differences between runs."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np

from kvsim.report import data
from kvsim.result import Result
from kvsim_app.charts.style import BAD, HEIGHT, SERIES, log_axis, log_scale, records, seconds_axis, series, share_axis

Runs = Mapping[str, Result]

METRICS = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2e": "E2E", "queue": "queue"}


def cdf(runs: Runs, metric: str) -> alt.Chart:
    """Share of requests (ITL: of gaps) that took at most so long, on a logarithmic axis."""
    curves = {name: data.cdf(result, metric) for name, result in runs.items()}
    points = [
        (name, value, share)
        for name, curve in curves.items()
        for value, share in zip(curve.value, curve.share, strict=True)
        if value > 0
    ]
    names, values, shares = zip(*points, strict=True) if points else ((), (), ())
    source = records(run=names, value=np.array(values, float), share=np.array(shares, float))
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X("value:Q", scale=log_scale(values), axis=seconds_axis(METRICS[metric], values)),
            y=alt.Y("share:Q", axis=share_axis("share at most"), scale=alt.Scale(domain=[0, 1])),
            color=series(runs),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("value:Q", title="seconds", format=".4~g"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
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
    rule = alt.Chart(records(x=[1.0])).mark_rule(strokeDash=[3, 3], opacity=0.6, color="#8A8F98").encode(x="x:Q")
    return alt.layer(bars, rule)
