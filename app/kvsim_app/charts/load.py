"""Latency and throughput against the rate of requests: load curve and Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from kvsim_app.charts.style import BAD, HEIGHT, log_axis, log_scale, number_axis, records, seconds_axis, series
from kvsim_app.load import Point


def curve(
    points: Sequence[Point], metric: str, title: str, limit: float | None = None, knees: dict[str, float] | None = None
) -> alt.LayerChart:
    """One metric against the rate, a line a policy, the objective as a dashed line, a mark where the rate is held."""
    names = list(dict.fromkeys(point.policy for point in points))
    known = [(p.policy, p.rate, getattr(p, metric)) for p in points if getattr(p, metric) is not None]
    policy, rate, value = zip(*known, strict=True) if known else ((), (), ())
    source = records(run=policy, rate=np.array(rate, float), value=np.array(value, float))
    seconds = metric != "goodput"
    heights = [*value, limit or 0.0]
    y = alt.Y(
        "value:Q",
        axis=seconds_axis(title, heights) if seconds else number_axis(title),
        scale=log_scale(heights) if seconds else alt.Scale(zero=True),
    )
    lines = (
        alt.Chart(source, height=HEIGHT)
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=alt.X("rate:Q", scale=log_scale(rate), axis=log_axis("requests a second", rate)),
            y=y,
            color=series(names),
            tooltip=[
                "run:N",
                alt.Tooltip("rate:Q", format=".3~g", title="requests/s"),
                alt.Tooltip("value:Q", format=".4~g", title=title),
            ],
        )
    )
    layers: list[alt.Chart] = [lines]
    if limit is not None:
        layers.append(
            alt.Chart(records(y=[limit])).mark_rule(color=BAD, strokeDash=[6, 4], strokeWidth=1.5).encode(y="y:Q")
        )
    held = {name: rate for name, rate in (knees or {}).items() if rate > 0}
    if held:
        marks = records(run=list(held), rate=list(held.values()))
        layers.append(
            alt.Chart(marks).mark_rule(strokeDash=[2, 3], strokeWidth=1.5).encode(x="rate:Q", color=series(names))
        )
    return alt.layer(*layers)


def pareto(points: Sequence[Point]) -> alt.Chart:
    """Tokens a second of a GPU against those of a user, at rates that a replica keeps up with; a click on a point
    selects it (`point`)."""
    names = list(dict.fromkeys(point.policy for point in points))
    known = [p for p in points if p.steady and p.per_user is not None and p.per_gpu is not None]
    source = records(
        run=[p.policy for p in known],
        rate=np.array([p.rate for p in known], float),
        user=np.array([p.per_user for p in known], float),
        gpu=np.array([p.per_gpu for p in known], float),
    )
    pick = alt.selection_point(name="point", fields=["run", "rate"], on="click")
    return (
        alt.Chart(source, height=420)
        .mark_line(point=alt.OverlayMarkDef(size=110, filled=True), strokeWidth=1.5, strokeOpacity=0.6)
        .encode(
            x=alt.X(
                "user:Q",
                axis=number_axis("output tokens/s of a user (1 ÷ median TPOT)", tickCount=10),
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y("gpu:Q", axis=number_axis("output tokens/s of a GPU"), scale=alt.Scale(zero=True)),
            color=series(names),
            order="rate:Q",
            tooltip=[
                "run:N",
                alt.Tooltip("rate:Q", format=".3~g", title="requests/s"),
                alt.Tooltip("user:Q", format=".3~g", title="tokens/s of a user"),
                alt.Tooltip("gpu:Q", format=".4~g", title="tokens/s of a GPU"),
            ],
        )
        .add_params(pick)
    )
