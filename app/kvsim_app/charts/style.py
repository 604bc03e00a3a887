"""What charts share: colours, scales, time axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from kvsim.report.axes import clock_ticks
from kvsim.report.palette import MEMORY, SERIES

HEIGHT = 360
GREY = "#8A8F98"
BAD = "#D55E00"


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
        scale=alt.Scale(domain=list(names), range=[MEMORY[n].colour for n in names]),
        sort=list(names),
        legend=alt.Legend(title=None, orient="top"),
    )


def palette(names: Sequence[str], field: str, title: str | None = None) -> alt.Color:
    """Colours in order for any other category."""
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=[SERIES[i % len(SERIES)] for i in range(len(names))]),
        sort=list(names),
        legend=alt.Legend(title=title, orient="top", labelLimit=240),
    )


def clock(title: str, high_s: float) -> alt.Axis:
    """An axis of time since the start, with labels at round minutes and hours."""
    return alt.Axis(title=title, labelExpr=DURATION, values=[at for at, _ in clock_ticks(high_s, 9)])


def seconds_axis(title: str) -> alt.Axis:
    """An axis of seconds, written as a person would: 20 ms, 1.5 s, 3 min."""
    return alt.Axis(title=title, labelExpr=DURATION, labelOverlap="greedy")


DURATION = (
    "datum.value == 0 ? '0' : datum.value < 0.9999e-3 ? format(datum.value * 1e6, '.3~g') + ' µs'"
    " : datum.value < 0.9999 ? format(datum.value * 1e3, '.3~g') + ' ms'"
    " : datum.value < 119.9 ? format(datum.value, '.3~g') + ' s'"
    " : datum.value < 7199 ? format(datum.value / 60, '.3~g') + ' min' : format(datum.value / 3600, '.3~g') + ' h'"
)
BYTES = (
    "datum.value == 0 ? '0' : datum.value < 1048576 ? format(datum.value / 1024, '.3~g') + ' KiB'"
    " : datum.value < 1073741824 ? format(datum.value / 1048576, '.3~g') + ' MiB'"
    " : format(datum.value / 1073741824, ',.3~r') + ' GiB'"
)


def records(**columns: Iterable[Any]) -> alt.Data:
    """Columns of equal length as the chart's own data."""
    names = list(columns)
    rows = zip(*(_plain(column) for column in columns.values()), strict=True)
    return alt.Data(values=[dict(zip(names, row, strict=True)) for row in rows])


def _plain(column: Iterable[Any]) -> Iterable[Any]:
    """NumPy arrays as Python numbers, to six digits: what nobody can see isn't sent."""
    if hasattr(column, "tolist"):
        values = column.tolist()
        return [float(f"{value:.6g}") for value in values] if column.dtype.kind == "f" else values
    return column
