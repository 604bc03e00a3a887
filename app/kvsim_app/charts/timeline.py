"""What happened when: requests as a Gantt chart, load and memory below it, one brush for all."""

from __future__ import annotations

import altair as alt
import numpy as np
import polars as pl

from kvsim.report import data
from kvsim.report.charts.style import GREY, SERIES, records, zoomed_clock
from kvsim.result import Result
from kvsim.units import NS_PER_S
from kvsim_app.phases import phases

ROWS = 80
"""requests that are drawn one by one"""
PHASES = {
    "queued": f"{GREY}73",  # translucent, on light and dark
    "prefill": SERIES[1],
    "decode": SERIES[0],
    "preempted": SERIES[4],
    "swapped": SERIES[3],
    "loading": SERIES[2],
}
PIECES = 8_000
"""spans that are drawn one by one; where there are more, neighbouring chunks of a prefill are one"""


def spans(result: Result, events: pl.DataFrame | None, first: int = 0, rows: int | None = None) -> pl.DataFrame:
    """Phases of `rows` completed requests (all of them) from the `first`-th arrival on: `row` by arrival, `request`,
    phase, start_s, end_s, tokens and part of a chunk, and the request's lengths."""
    done = result.requests.filter(pl.col("status") == "completed").sort("arrival_ns").slice(first, rows)
    known = done.select("id", "prompt_tokens", "output_tokens", "preemptions", row=pl.int_range(pl.len()) + first)
    found = phases(done, events).join(known, on="id")
    return found.select(
        "row",
        "phase",
        (pl.col("start_ns", "end_ns") / NS_PER_S).name.replace("_ns", "_s"),
        "tokens",
        "part",
        pl.col("id").alias("request"),
        "prompt_tokens",
        "output_tokens",
        "preemptions",
    ).sort("row", "start_s")


def gantt(result: Result, events: pl.DataFrame | None = None, first: int = 0) -> alt.VConcatChart:
    """Requests, batch and memory on one time axis: a brush in the lowest panel zooms all of them."""
    shown = spans(result, events, first, ROWS)
    low = float(shown["start_s"].min() or 0)  # type: ignore[arg-type]
    high = float(shown["end_s"].max() or 1)  # type: ignore[arg-type]
    brush = alt.selection_interval(encodings=["x"], name="brush", value={"x": [low, high]})
    zoomed = alt.Scale(domain={"param": "brush", "encoding": "x"}, nice=False)
    bars, batch = _bars(shown, zoomed), _batch(result, low, high, zoomed)
    overview = _pool(result, low, high).add_params(brush)
    return alt.vconcat(bars, batch, overview, spacing=8).resolve_scale(color="independent", strokeDash="independent")


def _bars(shown: pl.DataFrame, zoomed: alt.Scale) -> alt.Chart:
    if shown.height > PIECES:
        shown = joined(shown)
    names = [name for name in PHASES if name in shown["phase"].unique().to_list()]
    # every other chunk is paler: chunks of neighbouring steps touch
    shown = shown.with_columns(shade=pl.when(pl.col("part") % 2 == 0, pl.col("part") > 0).then(0.55).otherwise(1.0))
    return (
        alt.Chart(shown, height=400)
        .mark_bar(clip=True)
        .encode(
            x=alt.X("start_s:Q", scale=zoomed, axis=zoomed_clock("")),
            x2="end_s:Q",
            y=alt.Y("row:O", axis=alt.Axis(labels=False, ticks=False, title="requests, by arrival")),
            color=alt.Color(
                "phase:N",
                sort=names,
                legend=alt.Legend(title=None, orient="top"),
                scale=alt.Scale(domain=names, range=[PHASES[name] for name in names]),
            ),
            opacity=alt.Opacity("shade:Q", scale=None, legend=None),
            tooltip=[
                "request:Q",
                "phase:N",
                alt.Tooltip("start_s:Q", format=".3f", title="from, s"),
                alt.Tooltip("end_s:Q", format=".3f", title="to, s"),
                alt.Tooltip("part:Q", title="chunk"),
                alt.Tooltip("tokens:Q", format=",", title="tokens of the chunk"),
                alt.Tooltip("prompt_tokens:Q", format=",", title="prompt"),
                alt.Tooltip("output_tokens:Q", format=",", title="answer"),
                alt.Tooltip("preemptions:Q", title="preemptions"),
            ],
        )
    )


def joined(shown: pl.DataFrame) -> pl.DataFrame:
    """One span where a request has several of a phase behind each other."""
    run = (pl.col("phase") != pl.col("phase").shift(1).over("row")).fill_null(True).cum_sum()
    whole = shown.group_by("row", run.alias("run"), maintain_order=True).agg(
        pl.exclude("start_s", "end_s", "tokens", "part").first(),
        pl.col("start_s").min(),
        pl.col("end_s").max(),
        pl.col("tokens").sum(),
        part=pl.lit(0),
    )
    return whole.select(shown.columns)


def _batch(result: Result, low: float, high: float, zoomed: alt.Scale) -> alt.Chart:
    load = data.load_over_time(result, 400)
    inside = (load.time[1:] >= low) & (load.time[:-1] <= high) if len(load.time) else np.zeros(0, bool)
    t = load.time[:-1][inside]
    kinds = ["running", "waiting"]
    counts = records(
        t=np.tile(t, 2),
        kind=np.repeat(kinds, len(t)),
        value=np.concatenate([load.values[k][inside] for k in kinds]) if len(t) else [],
    )
    return (
        alt.Chart(counts, height=110)
        .mark_line(interpolate="step-after", clip=True)
        .encode(
            x=alt.X("t:Q", scale=zoomed, axis=zoomed_clock("")),
            y=alt.Y("value:Q", title="requests"),
            strokeDash=alt.StrokeDash("kind:N", legend=alt.Legend(title=None, orient="top")),
            color=alt.value(SERIES[2]),
            tooltip=["kind:N", alt.Tooltip("value:Q", format=".1f")],
        )
    )


def _pool(result: Result, low: float, high: float) -> alt.Chart:
    memory = data.memory_over_time(result, 400)
    inside = (memory.time[1:] >= low) & (memory.time[:-1] <= high) if len(memory.time) else np.zeros(0, bool)
    t = memory.time[:-1][inside]
    filled = records(t=t, value=memory.values["used"][inside] if memory.values else np.zeros(len(t)))
    whole = alt.Scale(domain=[low, high], nice=False)
    return (
        alt.Chart(filled, height=70)
        .mark_area(interpolate="step-after", color=SERIES[0], opacity=0.7, clip=True)
        .encode(
            x=alt.X("t:Q", scale=whole, axis=zoomed_clock("time: drag here to zoom")),
            y=alt.Y("value:Q", axis=alt.Axis(format="%", title="KV used", tickCount=3)),
        )
    )
