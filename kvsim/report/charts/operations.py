"""What happens over time: the panels of an engine's dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvsim.metrics import latencies
from kvsim.report import data
from kvsim.report.charts.latency import METRICS
from kvsim.report.charts.style import log_scale, number_axis, records, seconds_axis, series, time_axis, to_the_end
from kvsim.report.data import Series
from kvsim.result import Result
from kvsim.units import NS_PER_S

Float = NDArray[np.float64]


def rates(result: Result, bins: int = 120) -> Series:
    """Per second in each bin: prompt and generation tokens, arrivals, completions."""
    requests = result.requests
    end = max(int(requests["last_token_ns"].max() or 0), int(requests["arrival_ns"].max() or 0))  # type: ignore[arg-type]
    edges = np.linspace(int(requests["arrival_ns"].min() or 0), max(end, 1), bins + 1)  # type: ignore[arg-type]
    width = (edges[1] - edges[0]) / NS_PER_S
    done = requests.filter(pl.col("status") == "completed")

    def per_second(times: pl.Series) -> Float:
        counts: Float = np.histogram(times.to_numpy(), edges)[0] / width
        return counts

    steps = result.steps

    # a stride's tokens are spread evenly over its time: cumulative sums at the bins' edges, differenced
    def spread(tokens: Float) -> Float:
        if not steps.height:
            return np.zeros(bins)
        ends = steps["end_ns"].to_numpy().astype(float)
        order = np.argsort(ends, kind="stable")
        total = np.concatenate([[0.0], np.cumsum(tokens[order])])
        shares: Float = np.diff(np.interp(edges, np.concatenate([[float(edges[0])], ends[order]]), total)) / width
        return shares

    found = {
        "prompt tokens": spread(steps["prefill_tokens"].to_numpy().astype(float)),
        "generation tokens": spread((steps["decode"] * steps["steps"]).to_numpy().astype(float)),
        "arrivals": per_second(requests["arrival_ns"]),
        "completions": per_second(done["last_token_ns"]),
    }
    return Series(edges / NS_PER_S, found)


def panel(shown: Series, names: Sequence[str], title: str, unit: str = ",.3~g") -> alt.Chart:
    """One panel of the dashboard: some of a run's lines over bins of time."""
    return lines({name: (shown.time, shown.values[name]) for name in names}, title, float(shown.time[-1]), unit)


def load(runs: Mapping[str, Result], column: str, end_s: float) -> alt.Chart:
    """Running or waiting requests of every run, up to `end_s`."""
    loads = {name: data.load_over_time(result) for name, result in runs.items()}
    found = {name: (load.time, load.values[column]) for name, load in loads.items() if load.values}
    return lines(found, f"{column} requests", end_s, names=list(runs))


def lines(
    found: Mapping[str, tuple[Float, Float]],
    title: str,
    end_s: float,
    unit: str = ",.3~g",
    names: Sequence[str] = (),
) -> alt.Chart:
    """Lines over time up to `end_s`, each (edges of its bins in seconds, values); `names`: in the order of colours."""
    names = names or list(found)
    times = [edges for edges, _ in found.values()]
    source = records(
        t=np.concatenate([np.zeros(0), *times]),
        run=[name for name, (edges, _) in found.items() for _ in edges],
        value=np.concatenate([np.zeros(0), *(to_the_end(values) for _, values in found.values())]),
    )
    return (
        alt.Chart(source, height=280)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(
            x=time_axis("t:Q", end_s),
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
            x=time_axis("t:Q", float(stats["t"].max() or 1), "time of arrival"),  # type: ignore[arg-type]
            y=alt.Y("value:Q", axis=seconds_axis(METRICS[metric], found), scale=log_scale(found)),
            color=series(["p50", "p90", "p99"]),
            tooltip=["run:N", alt.Tooltip("value:Q", title="seconds", format=".4~g")],
        )
    )
