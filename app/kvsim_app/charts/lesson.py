"""Charts of the lessons: small, each about one idea."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from numpy.typing import NDArray

from kvsim_app.charts.style import BYTES, GREY, HEIGHT, SERIES, palette, records, seconds_axis

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
    colours = [SERIES[0], SERIES[2] if cached else SERIES[4]]
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
        opacity=alt.condition("datum.kind == 'read from the cache'", alt.value(0.35), alt.value(0.95)),
    )
    return alt.layer(cells)


def race(tokens: Float, cached: Float, uncached: Float, log: bool) -> alt.Chart:
    """Time until the n-th token, with a cache and without."""
    keep = np.unique(np.geomspace(1, len(tokens), 160).round().astype(int)) - 1
    names = ["without a cache", "with a cache"]
    source = records(
        n=np.tile(tokens[keep], 2), run=np.repeat(names, len(keep)), s=np.concatenate([uncached[keep], cached[keep]])
    )
    kind = "log" if log else "linear"
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_line(strokeWidth=2.5)
        .encode(
            x=alt.X("n:Q", scale=alt.Scale(type=kind, nice=False), axis=alt.Axis(title="tokens produced", format="~s")),
            y=alt.Y("s:Q", scale=alt.Scale(type=kind), axis=seconds_axis("time since the start")),
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
                "context:Q", scale=alt.Scale(nice=False), axis=alt.Axis(title="context of each request", format="~s")
            ),
            y=alt.Y("bytes:Q", axis=alt.Axis(title="KV cache, one GPU", labelExpr=BYTES)),
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


STATES = ["holds a token", "reserved, will be filled", "never filled", "free"]


def pool(cells: Sequence[tuple[str, str]], columns: int) -> alt.Chart:
    """A pool of memory slots, read like a page: (owner, state) of each."""
    place = np.arange(len(cells))
    source = records(
        x=place % columns, y=place // columns, owner=[owner for owner, _ in cells], state=[state for _, state in cells]
    )
    owners = sorted({owner for owner, _ in cells if owner != "nobody"})
    colours = [SERIES[i % 7] for i in range(len(owners))]
    return (
        alt.Chart(source, height=34 * -(-len(cells) // columns) + 80)
        .mark_rect(cornerRadius=3, stroke=GREY, strokeWidth=0.6)
        .encode(
            x=alt.X("x:O", axis=None, scale=alt.Scale(paddingInner=0.1)),
            y=alt.Y("y:O", axis=None, scale=alt.Scale(paddingInner=0.1)),
            color=alt.Color(
                "owner:N",
                scale=alt.Scale(domain=[*owners, "nobody"], range=[*colours, "rgba(138,143,152,0.1)"]),
                legend=alt.Legend(title=None, orient="top"),
            ),
            opacity=alt.Opacity(
                "state:N",
                scale=alt.Scale(domain=STATES, range=[1.0, 0.45, 0.2, 1.0]),
                legend=alt.Legend(title=None, orient="bottom", symbolFillColor=GREY),
            ),
            tooltip=["owner:N", "state:N"],
        )
    )


def bars(
    names: Sequence[str], values: Sequence[float], labels: Sequence[str], title: str, bytes_: bool = False
) -> alt.LayerChart:
    """A few numbers as bars, each with its label at the end."""
    source = records(name=names, value=[float(value) for value in values], label=labels)
    axis = alt.Axis(title=title, labelExpr=BYTES) if bytes_ else alt.Axis(title=title, format="~s")
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
                legend=alt.Legend(title=None, orient="top"),
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
    axis = alt.Axis(title=y_title, labelExpr=BYTES) if kind == "bytes" else seconds_axis(y_title)
    return (
        alt.Chart(records(run=run, at=at, value=np.array(value, float)), height=HEIGHT)
        .mark_line(point=True, strokeWidth=2.5)
        .encode(
            x=alt.X(
                "at:Q",
                scale=alt.Scale(type="log" if log else "linear", nice=False),
                axis=alt.Axis(title=x_title, format="~s"),
            ),
            y=alt.Y("value:Q", scale=alt.Scale(type="log" if log else "linear"), axis=axis),
            color=palette(names, "run"),
            tooltip=["run:N", "at:Q", alt.Tooltip("value:Q", format=".4~g")],
        )
    )
