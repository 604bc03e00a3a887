"""What charts share: colours, scales, time axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvsim.report.axes import clock_ticks, linear_ticks, log_ticks
from kvsim.report.palette import MEMORY, SERIES

Float = NDArray[np.float64]

HEIGHT = 360
GREY = "#8A8F98"
BAD = "#D55E00"
FREE = f"{GREY}40"
"""what nobody holds: a shade of what is behind it, on light and dark"""
IDLE = f"{GREY}80"
"""what is kept for whoever may come"""


def series(names: Iterable[str], title: str | None = None) -> alt.Color:
    """Colour by `run`: the n-th run has the n-th colour on every page."""
    order = list(names)
    return alt.Color(
        "run:N",
        scale=alt.Scale(domain=order, range=list(SERIES[: len(order)])),
        sort=order,
        legend=alt.Legend(title=title, orient="top", labelLimit=240),
    )


def categories(names: Sequence[str] = tuple(MEMORY), field: str = "category") -> alt.Color:
    """Colour of memory categories."""
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=[FREE if n == "free" else MEMORY[n].colour for n in names]),
        sort=list(names),
        legend=alt.Legend(title=None, orient="top"),
    )


def palette(names: Sequence[str], field: str, title: str | None = None, columns: int = 0) -> alt.Color:
    """Colours in order for any other category. `columns`: of the legend, which else is one line."""
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=[SERIES[i % len(SERIES)] for i in range(len(names))]),
        sort=list(names),
        legend=alt.Legend(title=title, orient="top", labelLimit=240, **({"columns": columns} if columns else {})),
    )


def clock(title: str, high_s: float) -> alt.Axis:
    """An axis of time since the start, with labels at round minutes and hours."""
    return alt.Axis(title=title, labelExpr=duration(60), values=clock_ticks(high_s, 9))


def time_axis(field: str, end_s: float, title: str = "time", start_s: float = 0.0) -> alt.X:
    """Time since the start across, from `start_s` to `end_s`."""
    return alt.X(field, axis=clock(title, end_s), scale=alt.Scale(domain=[start_s, end_s], nice=False))


def to_the_end(values: Float) -> Float:
    """Values of bins at the bins' edges, one more: a line of steps is drawn to the end of the last bin."""
    return np.append(values, values[-1:])


def share_axis(title: str) -> alt.Axis:
    """An axis of shares from 0 to all, in quarters."""
    return alt.Axis(title=title, format="%", values=[0, 0.25, 0.5, 0.75, 1])


def zoomed_clock(title: str) -> alt.Axis:
    """An axis of time since the start whose range the reader changes: 45 s, 2:05, 1:02:30."""
    return alt.Axis(title=title, labelExpr=CLOCK, labelOverlap="greedy", tickCount=8)


def seconds_axis(title: str, values: Float | Sequence[float] = ()) -> alt.Axis:
    """An axis of seconds, written as a person would: 20 ms, 1.5 s, 3 min. With `values`: of their `log_scale`, whose
    labels stay round in seconds (1,000 s)."""
    if len(values):
        ticks = log_ticks(*_span(values))
        return alt.Axis(title=title, labelExpr=duration(86_400), labelOverlap="greedy", values=ticks)
    return alt.Axis(title=title, labelExpr=duration(120), labelOverlap="greedy", tickCount=6)


def number_axis(title: str, unit: str = "", **more: Any) -> alt.Axis:
    """An axis of plain numbers: 0.5, 200, 1,500, 20k."""
    return alt.Axis(title=title, labelExpr=NUMBER + (f" + ' {unit}'" if unit else ""), **({"tickCount": 6} | more))


def log_axis(title: str, values: Float | Sequence[float]) -> alt.Axis:
    """An axis of plain numbers for their `log_scale`, labelled at 1, 2 and 5 as far as there is room."""
    return number_axis(title, values=log_ticks(*_span(values)), labelOverlap="greedy")


def log_scale(values: Float | Sequence[float]) -> alt.Scale:
    """A logarithmic scale over the values above 0, with a little room at both ends."""
    return alt.Scale(type="log", domain=list(_span(values)), nice=False)


def _span(values: Float | Sequence[float]) -> tuple[float, float]:
    shown = np.asarray(values, float)
    shown = shown[shown > 0]
    if not len(shown):
        return 0.5, 2.0
    low, high = float(shown.min()), float(shown.max())
    return low / 1.1, max(high * 1.1, low * 1.5)


def bytes_axis(title: str, high: float, log_from: float = 0.0) -> alt.Axis:
    """An axis of bytes up to `high`, labelled at round multiples of the unit; logarithmic from `log_from`."""
    if log_from > 0:
        values = [2.0**i for i in range(0, 60, 4) if log_from / 1.1 <= 2.0**i <= high * 1.1]
    else:
        unit = 2.0 ** (10 * max(0, min(3, int(math.log2(max(high, 1.0)) // 10))))
        values = [tick * unit for tick in linear_ticks(high / unit, 8)]
    return alt.Axis(title=title, labelExpr=BYTES, values=values)


def duration(minutes_from_s: float) -> str:
    """A label in µs, ms and s, from so many seconds on in minutes and hours."""
    return (
        "datum.value == 0 ? '0' : datum.value < 0.9999e-3 ? format(datum.value * 1e6, '.3~r') + ' µs'"
        " : datum.value < 0.9999 ? format(datum.value * 1e3, '.3~r') + ' ms'"
        f" : datum.value < {minutes_from_s * 0.9999} ? format(datum.value, ',.3~r') + ' s'"
        " : datum.value < 3599.9 ? format(datum.value / 60, '.3~r') + ' min'"
        " : format(datum.value / 3600, '.3~r') + ' h'"
    )


CLOCK = (
    "datum.value < 60 ? format(datum.value, '.4~r') + ' s'"
    " : (datum.value < 3600 ? '' : floor(datum.value / 3600) + ':')"
    " + format(floor(datum.value / 60) % 60, datum.value < 3600 ? 'd' : '02d')"
    " + ':' + (datum.value % 60 < 9.9995 ? '0' : '') + format(datum.value % 60, '.3~f')"
)
NUMBER = "datum.value < 10000 ? format(datum.value, ',.4~r') : format(datum.value, '.3~s')"
BYTES = (
    "datum.value == 0 ? '0' : datum.value < 1024 ? datum.value + ' B'"
    " : datum.value < 1048576 ? format(datum.value / 1024, '.3~r') + ' KiB'"
    " : datum.value < 1073741824 ? format(datum.value / 1048576, '.3~r') + ' MiB'"
    " : format(datum.value / 1073741824, ',.4~r') + ' GiB'"
)


def records(**columns: Iterable[Any]) -> pl.DataFrame:
    """Columns of equal length as a chart's data: a table travels to the browser as Arrow, and Altair does not check it
    value by value."""
    return pl.DataFrame(
        {name: column if hasattr(column, "dtype") else list(column) for name, column in columns.items()}
    )
