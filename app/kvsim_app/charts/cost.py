"""How long a step takes and why: roofline, parts, and measured points over the physical form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np

from kvsim.cost import PartCost
from kvsim.device import Facts
from kvsim.report.charts.style import GREY, HEIGHT, log_axis, log_scale, number_axis, palette, records, seconds_axis
from kvsim_app.physics import Dot, Knot


def roofline(facts: Facts, dtype: str, dots: Sequence[Dot]) -> alt.LayerChart:
    """What the device could do at most (grey), and where the terms of each step are."""
    ridge = facts.peak_flops(dtype) / facts.bandwidth
    low = min([0.5, *(dot.intensity / 2 for dot in dots)])
    high = max([ridge * 10, *(dot.intensity * 2 for dot in dots)])
    x = np.array([low, ridge, high])
    top = np.minimum(x * facts.bandwidth, facts.peak_flops(dtype))
    heights = [*top.tolist(), *(dot.flops for dot in dots)]
    roof = records(x=x, y=top)
    line = (
        alt.Chart(roof, height=HEIGHT + 90)
        .mark_line(color=GREY, strokeWidth=3)
        .encode(
            x=alt.X("x:Q", scale=log_scale([low, high]), axis=log_axis("FLOP a byte", [low, high])),
            y=alt.Y("y:Q", scale=log_scale(heights), axis=log_axis("FLOP/s", heights)),
        )
    )
    parts = list(dict.fromkeys(dot.part for dot in dots))
    marks = (
        alt.Chart(
            records(
                x=[d.intensity for d in dots],
                y=[d.flops for d in dots],
                part=[d.part for d in dots],
                step=[d.step for d in dots],
                share=[d.flops / min(d.intensity * facts.bandwidth, facts.peak_flops(dtype)) for d in dots],
                tier=[d.tier for d in dots],
            )
        )
        .mark_point(filled=True, size=110, opacity=0.9)
        .encode(
            x="x:Q",
            y="y:Q",
            color=palette(parts, "part", columns=2),
            shape=alt.Shape(
                "step:N",
                sort=list(dict.fromkeys(d.step for d in dots)),
                legend=alt.Legend(title=None, orient="bottom", columns=1, labelLimit=260, symbolFillColor=GREY),
            ),
            tooltip=[
                "step:N",
                "part:N",
                alt.Tooltip("share:Q", format=".0%", title="of the roof"),
                "tier:N",
                alt.Tooltip("y:Q", format=".3~s", title="FLOP/s"),
            ],
        )
    )
    return alt.layer(line, marks)


def part_name(part: str) -> str:
    """A part of a step as people call it."""
    return "linear layers" if part == "linear" else part.replace("_", " ")


def parts(steps: Mapping[str, Mapping[str, PartCost]]) -> alt.Chart:
    """Time of each step by part, a bar a step."""
    names = list(dict.fromkeys(part for found in steps.values() for part in found))
    rows = [
        (step, part_name(part), order, cost.ns / 1e9, cost.error_p95, cost.tier)
        for step, found in steps.items()
        for order, (part, cost) in enumerate((n, found[n]) for n in names if n in found)
    ]
    step, part, order, seconds, error, tier = zip(*rows, strict=True)
    source = records(step=step, part=part, order=order, seconds=np.array(seconds), error=np.array(error), tier=tier)
    return (
        alt.Chart(source, height=40 * len(steps) + 130)
        .mark_bar(height=24, opacity=0.9)
        .encode(
            x=alt.X("seconds:Q", stack="zero", axis=seconds_axis("time of a step")),
            y=alt.Y("step:N", sort=list(steps), title=None, axis=alt.Axis(labelLimit=240)),
            color=palette([part_name(name) for name in names], "part", columns=5),
            order="order:Q",
            tooltip=[
                "step:N",
                "part:N",
                alt.Tooltip("seconds:Q", format=".3~e"),
                "tier:N",
                alt.Tooltip("error:Q", format=".0%", title="95 % of errors within"),
            ],
        )
    )


def ratios(axis: str, points: Sequence[Knot]) -> alt.LayerChart:
    """Measured time over the physical form's: 1 is what the form alone would say."""
    curves = list(dict.fromkeys(point.curve for point in points))
    source = records(
        curve=[p.curve for p in points],
        at=[p.at for p in points],
        ratio=np.array([p.ratio for p in points]),
        source=[p.source for p in points],
    )
    lines = (
        alt.Chart(source, height=HEIGHT)
        .mark_line(point=True, strokeWidth=1.5)
        .encode(
            x=alt.X("at:Q", scale=log_scale([p.at for p in points]), axis=log_axis(axis, [p.at for p in points])),
            y=alt.Y("ratio:Q", axis=number_axis("measured ÷ physical form"), scale=alt.Scale(zero=False)),
            color=palette(curves, "curve", columns=6),
            tooltip=["curve:N", "at:Q", alt.Tooltip("ratio:Q", format=".3f"), "source:N"],
        )
    )
    one = alt.Chart(records(y=[1.0])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(y="y:Q")
    return alt.layer(one, lines)
