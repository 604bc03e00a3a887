"""Latency and throughput against the rate of requests: load curve and Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from kvsim.report.charts.style import BAD, HEIGHT, log_axis, log_scale, number_axis, records, seconds_axis, series


@dataclass(frozen=True, slots=True)
class Tried:
    """One rate that was simulated."""

    run: str
    rate: float
    """requests/s"""
    per_user: float
    """output tokens/s that one user sees"""
    per_gpu: float
    """output tokens/s of one GPU"""
    missed: str = ""
    """which objectives, if any"""


def curve(
    found: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    limit: float | None = None,
    knees: Mapping[str, float] | None = None,
    seconds: bool = True,
) -> alt.LayerChart:
    """One metric against the rate, a line a run of (rate, value): the objective as a dashed line, a dotted one where a
    run holds all of them. `seconds`: the metric is a time; else a rate."""
    names = list(found)
    rates = np.array([rate for points in found.values() for rate, _ in points], float)
    values = np.array([value for points in found.values() for _, value in points], float)
    source = records(run=[name for name, points in found.items() for _ in points], rate=rates, value=values)
    heights = [*values.tolist(), limit or 0.0]
    y = alt.Y(
        "value:Q",
        axis=seconds_axis(title, heights) if seconds else number_axis(title),
        scale=log_scale(heights) if seconds else alt.Scale(zero=True),
    )
    lines = (
        alt.Chart(source, height=HEIGHT)
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=alt.X("rate:Q", scale=log_scale(rates), axis=log_axis("requests a second", rates)),
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


def pareto(points: Sequence[Tried], names: Sequence[str] = ()) -> alt.Chart:
    """Tokens a second of a GPU against those of a user, a line a run through its rates; a click on a point selects it
    (`point`). `names`: all runs, in the order of their colours."""
    source = records(
        run=[p.run for p in points],
        rate=np.array([p.rate for p in points], float),
        user=np.array([p.per_user for p in points], float),
        gpu=np.array([p.per_gpu for p in points], float),
        missed=[p.missed or "none" for p in points],
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
            color=series(names or dict.fromkeys(p.run for p in points)),
            order="rate:Q",
            tooltip=[
                "run:N",
                alt.Tooltip("rate:Q", format=".3~g", title="requests/s"),
                alt.Tooltip("user:Q", format=".3~g", title="tokens/s of a user"),
                alt.Tooltip("gpu:Q", format=".4~g", title="tokens/s of a GPU"),
                alt.Tooltip("missed:N", title="objectives missed"),
            ],
        )
        .add_params(pick)
    )
