"""What happened when: requests as a Gantt chart, load and memory below it, panels of an engine's dashboard."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import polars as pl

from kvsim.metrics import latencies
from kvsim.report import data
from kvsim.result import Result
from kvsim.units import NS_PER_S
from kvsim_app.charts.latency import METRICS
from kvsim_app.charts.style import (
    GREY,
    SERIES,
    clock,
    log_scale,
    number_axis,
    records,
    seconds_axis,
    series,
    zoomed_clock,
)

ROWS = 120
"""requests that are drawn one by one"""
PHASES = {
    "queued": f"{GREY}73",  # translucent, on light and dark
    "prefill": SERIES[1],
    "decode": SERIES[0],
    "decode, once preempted": SERIES[4],
}


def phases(result: Result, first: int = 0, rows: int = ROWS) -> pl.DataFrame:
    """(row, phase, start_s, end_s, prompt, output) of `rows` completed requests from the `first`-th arrival on."""
    done = result.requests.filter(pl.col("status") == "completed").sort("arrival_ns").slice(first, rows)
    done = done.with_columns(row=pl.int_range(pl.len()) + first)
    last = pl.when(pl.col("preemptions") > 0).then(pl.lit("decode, once preempted")).otherwise(pl.lit("decode"))
    spans = (
        ("arrival_ns", "scheduled_ns", pl.lit("queued")),
        ("scheduled_ns", pl.coalesce("first_token_ns", "last_token_ns"), pl.lit("prefill")),
        ("first_token_ns", "last_token_ns", last),
    )
    parts = []
    for start, end, phase in spans:
        stop = pl.col(end) if isinstance(end, str) else end
        parts.append(
            done.select(
                "row",
                phase.alias("phase"),
                (pl.col(start) / NS_PER_S).alias("start_s"),
                (stop / NS_PER_S).alias("end_s"),
                pl.col("id").alias("request"),
                "prompt_tokens",
                "output_tokens",
                "preemptions",
            )
        )
    return pl.concat(parts).filter(pl.col("start_s").is_not_null() & (pl.col("end_s") > pl.col("start_s")))


def gantt(result: Result, first: int = 0, rows: int = ROWS) -> alt.VConcatChart:
    """Requests, batch and memory on one time axis: a brush in the lowest panel zooms all of them."""
    spans = phases(result, first, rows)
    shown = spans["phase"].unique().to_list()
    names = [name for name in PHASES if name in shown]
    low = float(spans["start_s"].min() or 0)  # type: ignore[arg-type]
    high = float(spans["end_s"].max() or 1)  # type: ignore[arg-type]
    brush = alt.selection_interval(encodings=["x"], name="brush", value={"x": [low, high]})
    zoomed = alt.Scale(domain={"param": "brush", "encoding": "x"}, nice=False)
    bars = (
        alt.Chart(records(**{c: spans[c].to_list() for c in spans.columns}), height=340)
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
            tooltip=[
                "request:Q",
                "phase:N",
                alt.Tooltip("start_s:Q", format=".3f"),
                alt.Tooltip("end_s:Q", format=".3f"),
                "prompt_tokens:Q",
                "output_tokens:Q",
                "preemptions:Q",
            ],
        )
    )
    load = data.load_over_time(result, 400)
    memory = data.memory_over_time(result, 400)
    inside = (load.time[1:] >= low) & (load.time[:-1] <= high) if len(load.time) else np.zeros(0, bool)
    t = load.time[:-1][inside]
    kinds = ["running", "waiting"]
    counts = records(
        t=np.tile(t, 2),
        kind=np.repeat(kinds, len(t)),
        value=np.concatenate([load.values[k][inside] for k in kinds]) if len(t) else [],
    )
    batch = (
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
    share = memory.values["used"][inside] if memory.values else np.zeros(len(t))
    filled = records(t=t, value=share)
    overview = (
        alt.Chart(filled, height=70)
        .mark_area(interpolate="step-after", color=SERIES[0], opacity=0.7)
        .encode(
            x=alt.X(
                "t:Q", scale=alt.Scale(domain=[low, high], nice=False), axis=zoomed_clock("time: drag here to zoom")
            ),
            y=alt.Y("value:Q", axis=alt.Axis(format="%", title="KV used", tickCount=3)),
        )
        .add_params(brush)
    )
    return alt.vconcat(bars, batch, overview, spacing=8).resolve_scale(color="independent", strokeDash="independent")


def rates(result: Result, bins: int = 120) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(edges in s, per second in each bin): prompt and generation tokens, arrivals, completions, preempted requests."""
    requests = result.requests
    end = max(int(requests["last_token_ns"].max() or 0), int(requests["arrival_ns"].max() or 0))  # type: ignore[arg-type]
    edges = np.linspace(int(requests["arrival_ns"].min() or 0), max(end, 1), bins + 1)  # type: ignore[arg-type]
    width = (edges[1] - edges[0]) / NS_PER_S
    done = requests.filter(pl.col("status") == "completed")

    def per_second(times: pl.Series, weights: pl.Series | None = None) -> np.ndarray:
        counts, _ = np.histogram(times.to_numpy(), edges, weights=None if weights is None else weights.to_numpy())
        return counts / width

    steps = result.steps

    # a stride's tokens are spread evenly over its time: cumulative sums at the bins' edges, differenced
    def spread(tokens: np.ndarray) -> np.ndarray:
        if not steps.height:
            return np.zeros(bins)
        ends = steps["end_ns"].to_numpy().astype(float)
        order = np.argsort(ends, kind="stable")
        total = np.concatenate([[0.0], np.cumsum(tokens[order])])
        return np.diff(np.interp(edges, np.concatenate([[float(edges[0])], ends[order]]), total)) / width

    found = {
        "prompt tokens": spread(steps["prefill_tokens"].to_numpy().astype(float)),
        "generation tokens": spread((steps["decode"] * steps["steps"]).to_numpy().astype(float)),
        "arrivals": per_second(requests["arrival_ns"]),
        "completions": per_second(done["last_token_ns"]),
    }
    return edges / NS_PER_S, found


def panel(time: np.ndarray, lines: Mapping[str, np.ndarray], title: str, unit: str = ",.3~g") -> alt.Chart:
    """One panel of the dashboard: lines over bins of time."""
    names = list(lines)
    source = records(
        t=np.tile(time[:-1], len(names)),
        run=np.repeat(names, len(time) - 1),
        value=np.concatenate(list(lines.values())),
    )
    return (
        alt.Chart(source, height=280)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=alt.X("t:Q", axis=clock("time", float(time[-1])), scale=alt.Scale(nice=False)),
            y=alt.Y(
                "value:Q",
                axis=alt.Axis(title=title, format="~%", tickCount=5) if unit.endswith("%") else number_axis(title),
                scale=alt.Scale(zero=True),
            ),
            color=series(names),
            tooltip=["run:N", alt.Tooltip("value:Q", format=unit), alt.Tooltip("t:Q", title="s", format=".1f")],
        )
    )


def quantiles(result: Result, metric: str, bins: int = 60) -> alt.Chart | None:
    """Median, 90th and 99th percentile of a latency, by arrival; None where it is nowhere defined."""
    done = result.requests.filter(pl.col("status") == "completed")
    frame = latencies(result.requests).with_columns(t=done["arrival_ns"] / NS_PER_S).select("t", value=metric)
    frame = frame.drop_nulls()
    if frame.is_empty():
        return None
    width = (float(frame["t"].max()) - float(frame["t"].min())) / bins or 1.0  # type: ignore[arg-type]
    stats = (
        frame.group_by(((pl.col("t") / width).floor() * width).alias("t"))
        .agg(
            pl.col("value").quantile(0.5, "linear").alias("p50"),
            pl.col("value").quantile(0.9, "linear").alias("p90"),
            pl.col("value").quantile(0.99, "linear").alias("p99"),
        )
        .sort("t")
        .unpivot(index="t", variable_name="run", value_name="value")
        .filter(pl.col("value") > 0)
    )
    found = stats["value"].to_numpy()
    source = records(t=stats["t"].to_numpy(), run=stats["run"].to_list(), value=found)
    return (
        alt.Chart(source, height=280)
        .mark_line(strokeWidth=1.6)
        .encode(
            x=alt.X("t:Q", axis=clock("time of arrival", float(stats["t"].max() or 1)), scale=alt.Scale(nice=False)),
            y=alt.Y("value:Q", axis=seconds_axis(METRICS[metric], found), scale=log_scale(found)),
            color=series(["p50", "p90", "p99"]),
            tooltip=["run:N", alt.Tooltip("value:Q", title="seconds", format=".4~g")],
        )
    )
