"""Charts of the lessons: small, each about one idea."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from numpy.typing import NDArray

from kvsim.report.charts.style import (
    GREY,
    HEIGHT,
    SERIES,
    bytes_axis,
    log_axis,
    log_scale,
    number_axis,
    palette,
    records,
    seconds_axis,
)

Float = NDArray[np.float64]
WORDS = [
    "The",
    "cache",
    "keeps",
    "what",
    "each",
    "token",
    "said",
    "so",
    "that",
    "no",
    "later",
    "one",
    "must",
    "ask",
    "again",
]


def steps(tokens: int, now: int, cached: bool) -> alt.LayerChart:
    """Step by step: which tokens' keys and values are computed (for the first time or again), which are read."""
    rows = []
    for step in range(1, now + 1):
        for token in range(1, step + 1):
            kind = "computed" if token == step else ("read from the cache" if cached else "computed again")
            rows.append((step, token, kind, WORDS[(token - 1) % len(WORDS)]))
    step, token, kind, word = zip(*rows, strict=True)
    kinds = ["computed", "read from the cache" if cached else "computed again"]
    colours = [SERIES[0], f"{SERIES[2]}59" if cached else SERIES[4]]  # 59: translucent, on light and dark
    source = records(step=step, token=token, kind=kind, word=word)
    axis = list(range(1, tokens + 1))
    base = alt.Chart(source, height=24 * tokens + 110).encode(
        x=alt.X("token:O", scale=alt.Scale(domain=axis), axis=alt.Axis(title="token", orient="top", labelAngle=0)),
        y=alt.Y("step:O", scale=alt.Scale(domain=axis), axis=alt.Axis(title="step")),
        tooltip=["step:O", "word:N", "kind:N"],
    )
    cells = base.mark_rect(cornerRadius=3, stroke="transparent").encode(
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=kinds, range=colours),
            sort=kinds,
            legend=alt.Legend(title=None, orient="bottom"),
        ),
    )
    return alt.layer(cells)


def race(tokens: Float, cached: Float, uncached: Float, log: bool, points: bool = False) -> alt.Chart:
    """Time until the n-th token, with a cache and without: lines, or `points` that were measured."""
    keep = (
        np.unique(
            (np.geomspace if log or not points else np.linspace)(1, len(tokens), 40 if points else 160)
            .round()
            .astype(int)
        )
        - 1
    )
    names = ["without a cache", "with a cache"]
    source = records(
        n=np.tile(tokens[keep], 2), run=np.repeat(names, len(keep)), s=np.concatenate([uncached[keep], cached[keep]])
    )
    times = np.concatenate([uncached, cached])
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_line(strokeWidth=1 if points else 2.5, point=points)
        .encode(
            x=alt.X(
                "n:Q",
                scale=log_scale(tokens) if log else alt.Scale(nice=False),
                axis=log_axis("tokens produced", tokens) if log else number_axis("tokens produced"),
            ),
            y=alt.Y(
                "s:Q",
                scale=log_scale(times) if log else alt.Scale(),
                axis=seconds_axis("time since the start", times if log else ()),
            ),
            color=alt.Color(
                "run:N",
                scale=alt.Scale(domain=names, range=[SERIES[4], SERIES[0]]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            tooltip=["run:N", alt.Tooltip("n:Q", format=","), alt.Tooltip("s:Q", format=".4~g", title="seconds")],
        )
    )


def growth(contexts: Sequence[int], per_request: Sequence[int], batches: Sequence[int], room: int) -> alt.LayerChart:
    """KV bytes against context, a line a batch size; the dashed line is the room beside the weights."""
    names = [f"{batch} requests" if batch > 1 else "1 request" for batch in batches]
    source = records(
        context=list(contexts) * len(batches),
        run=np.repeat(names, len(contexts)),
        bytes=[size * batch for batch in batches for size in per_request],
    )
    lines = (
        alt.Chart(source, height=HEIGHT)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X(
                "context:Q",
                scale=alt.Scale(nice=False),
                axis=number_axis("context of each request, tokens", tickCount=9),
            ),
            y=alt.Y("bytes:Q", axis=bytes_axis("KV cache, one GPU", max(room, max(per_request) * max(batches)))),
            color=palette(names, "run"),
            tooltip=["run:N", alt.Tooltip("context:Q", format=",")],
        )
    )
    rule = alt.Chart(records(y=[room], label=["room beside the weights"])).encode(y="y:Q")
    return alt.layer(
        lines,
        rule.mark_rule(color=GREY, strokeDash=[6, 4], strokeWidth=2),
        rule.mark_text(align="left", dx=6, dy=-8, color=GREY).encode(text="label:N", x=alt.value(0)),
    )


STATES = {"holds a token": "●", "reserved, will be filled": "○", "never filled": "×", "free": ""}
"""state of a slot of the toy pool → its mark"""


def pool(cells: Sequence[tuple[str, str]], columns: int) -> alt.LayerChart:
    """A pool of memory slots, read like a page: (owner, state) of each; the owner's colour, the state's mark."""
    place = np.arange(len(cells))
    source = records(
        x=place % columns,
        y=place // columns,
        owner=[owner for owner, _ in cells],
        state=[state for _, state in cells],
        mark=[STATES[state] for _, state in cells],
        shade=[1.0 if state in ("holds a token", "free") else 0.45 for _, state in cells],
    )
    owners = sorted({owner for owner, _ in cells if owner != "nobody"})
    colours = [SERIES[i % 7] for i in range(len(owners))]
    base = alt.Chart(source, height=42 * -(-len(cells) // columns) + 60).encode(
        x=alt.X("x:O", axis=None, scale=alt.Scale(paddingInner=0.1)),
        y=alt.Y("y:O", axis=None, scale=alt.Scale(paddingInner=0.1)),
        tooltip=["owner:N", "state:N"],
    )
    slots = base.mark_rect(cornerRadius=3).encode(
        color=alt.Color(
            "owner:N",
            scale=alt.Scale(domain=[*owners, "nobody"], range=[*colours, f"{GREY}26"]),
            legend=alt.Legend(title=None, orient="top", values=owners),
        ),
        opacity=alt.Opacity("shade:Q", scale=None),
    )
    return slots + base.mark_text(fontSize=13, color="#FFFFFF").encode(text="mark:N")


def bars(
    names: Sequence[str], values: Sequence[float], labels: Sequence[str], title: str, bytes_: bool = False
) -> alt.LayerChart:
    """A few numbers as bars, each with its label at the end."""
    source = records(name=names, value=[float(value) for value in values], label=labels)
    axis = bytes_axis(title, max(values) * 1.18) if bytes_ else number_axis(title)
    base = alt.Chart(source, height=44 * len(names) + 60).encode(
        y=alt.Y("name:N", sort=list(names), title=None, axis=alt.Axis(labelLimit=200)),
        x=alt.X("value:Q", axis=axis, scale=alt.Scale(domain=[0, max(values) * 1.18 or 1], nice=False)),
        tooltip=["name:N", "label:N"],
    )
    return base.mark_bar(height=28, opacity=0.9).encode(
        color=palette(list(names), "name").legend(None)
    ) + base.mark_text(align="left", dx=6, fontWeight="bold", color=GREY).encode(text="label:N")


def strip(kept: dict[str, Sequence[str]]) -> alt.Chart:
    """A row a policy, a cell a token: what is still in the cache, and why."""
    rows = [(name, place, why) for name, tokens in kept.items() for place, why in enumerate(tokens)]
    name, place, why = zip(*rows, strict=True)
    kinds = [
        "kept: full",
        "kept: sink",
        "kept: recent",
        "kept: heavy hitter",
        "kept: chosen from the prompt",
        "dropped",
    ]
    shown = [kind for kind in kinds if kind in why]
    colours = dict(
        zip(kinds, [SERIES[0], SERIES[4], SERIES[2], SERIES[1], SERIES[3], "rgba(138,143,152,0.15)"], strict=True)
    )
    return (
        alt.Chart(records(policy=name, token=place, why=why), height=48 * len(kept) + 90)
        .mark_rect()
        .encode(
            x=alt.X("token:O", axis=alt.Axis(title="token, oldest first", labels=False, ticks=False)),
            y=alt.Y(
                "policy:N",
                sort=list(kept),
                title=None,
                axis=alt.Axis(labelLimit=160),
                scale=alt.Scale(paddingInner=0.35),
            ),
            color=alt.Color(
                "why:N",
                sort=shown,
                scale=alt.Scale(domain=shown, range=[colours[k] for k in shown]),
                legend=alt.Legend(title=None, orient="top", labelLimit=260),
            ),
            tooltip=["policy:N", "token:O", "why:N"],
        )
    )


def lines(
    x: Sequence[float],
    series: dict[str, Sequence[float]],
    x_title: str,
    y_title: str,
    kind: str = "bytes",
    log: bool = True,
) -> alt.Chart:
    """A few lines over one axis; `kind`: bytes or seconds."""
    names = list(series)
    points = [
        (name, at, value) for name, values in series.items() for at, value in zip(x, values, strict=True) if value
    ]
    run, at, value = zip(*points, strict=True)
    axis = (
        bytes_axis(y_title, max(value), min(value) if log else 0.0)
        if kind == "bytes"
        else seconds_axis(y_title, value if log else ())
    )
    return (
        alt.Chart(records(run=run, at=at, value=np.array(value, float)), height=HEIGHT)
        .mark_line(point=True, strokeWidth=2.5)
        .encode(
            x=alt.X(
                "at:Q",
                scale=log_scale(x) if log else alt.Scale(nice=False),
                axis=number_axis(x_title, values=list(x), labelOverlap="greedy") if log else number_axis(x_title),
            ),
            y=alt.Y("value:Q", scale=log_scale(value) if log else alt.Scale(), axis=axis),
            color=palette(names, "run"),
            tooltip=["run:N", "at:Q", alt.Tooltip("value:Q", format=".4~g")],
        )
    )
