"""The panels of an engine's dashboard, from a simulated run."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import polars as pl

from kvsim.metrics import latencies
from kvsim.result import Result
from kvsim.units import NS_PER_S
from kvsim_app.charts.latency import METRICS
from kvsim_app.charts.style import clock, log_scale, number_axis, records, seconds_axis, series


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
