"""Where the bytes are: the GPU's plan, the KV pool over time, and who holds which bytes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from kvsim.report import data
from kvsim.report.charts.style import (
    GREY,
    HEIGHT,
    IDLE,
    bytes_axis,
    categories,
    palette,
    records,
    share_axis,
    time_axis,
    to_the_end,
)
from kvsim.report.palette import MEMORY, SERIES
from kvsim.result import Result
from kvsim.units import format_bytes

Runs = Mapping[str, Result]
Float = NDArray[np.float64]

PLAN = {"weights": "weights_bytes", "activations": "activation_bytes", "other": "other_bytes", "KV pool": "kv_bytes"}
"""part of a GPU → key of the memory plan"""
EXACT = 4000
"""pieces of a memory map that are drawn one by one; more are put on a raster"""


def over_time(result: Result, end_s: float | None = None) -> alt.Chart | None:
    """The pool's shares by category over time, up to `end_s` or the run's end; None without a pool."""
    found = data.memory_over_time(result)
    if not found.values:
        return None
    shown = [name for name in MEMORY if found.values[name].any()]
    n = len(found.time)
    source = records(
        t=np.tile(found.time, len(shown)),
        category=np.repeat(shown, n),
        order=np.repeat(np.arange(len(shown)), n),
        share=np.concatenate([to_the_end(found.values[name]) for name in shown]),
    )
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=time_axis("t:Q", end_s or float(found.time[-1])),
            y=alt.Y(
                "share:Q",
                stack="zero",
                axis=share_axis("of the KV pool"),
                scale=alt.Scale(domain=[0, 1]),
            ),
            color=categories(shown),
            order=alt.Order("order:Q"),
            tooltip=["category:N", alt.Tooltip("share:Q", format=".2%"), alt.Tooltip("t:Q", title="s", format=".1f")],
        )
    )


def bars(runs: Runs) -> alt.Chart:
    """Mean shares of the pool, a bar a run."""
    rows = [
        (name, category, place, share or 0.0)
        for name, result in runs.items()
        for place, (category, share) in enumerate(result.summary["memory"]["mean"].items())
    ]
    names, kinds, places, shares = zip(*rows, strict=True)
    shown = [name for name in MEMORY if any(k == name and s > 0 for _, k, _, s in rows)] or list(MEMORY)
    source = records(run=names, category=kinds, order=places, share=np.array(shares))
    share = alt.X("share:Q", stack="zero", axis=share_axis("of the KV pool, mean over time"),
                  scale=alt.Scale(domain=[0, 1]))  # fmt: skip
    return _bar_a_run(source, list(runs), share, categories(shown)).encode(
        tooltip=["run:N", "category:N", alt.Tooltip("share:Q", format=".2%")]
    )


def _bar_a_run(source: Any, runs: list[str], x: alt.X, color: alt.Color) -> alt.Chart:
    """Stacked bars of `source`: its columns `run` and `order`, and what `x` and `color` name."""
    return (
        alt.Chart(source, height=48 * len(runs) + 120)
        .mark_bar(opacity=0.9)
        .encode(
            x=x,
            y=alt.Y("run:N", sort=runs, title=None, axis=alt.Axis(labelLimit=200)),
            color=color,
            order=alt.Order("order:Q"),
        )
    )


def parts(plan: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of one GPU by what they are for; in the order of their colours in `plan`."""
    found = {name: max(int(plan.get(key) or 0), 0) for name, key in PLAN.items()}
    return found | {"unmanaged": max(int(plan["total_bytes"]) - sum(found.values()), 0)}


def plan(plans: Mapping[str, Mapping[str, Any]]) -> alt.Chart:
    """The bytes of one GPU, a bar a run."""
    names = [*PLAN, "unmanaged"]
    most = max(int(found["total_bytes"]) for found in plans.values())
    rows = []
    for run, found in plans.items():
        sizes = enumerate(parts(found).items())
        rows += [(run, name, place, size, format_bytes(size)) for place, (name, size) in sizes]
    runs, kinds, order, size, text = zip(*rows, strict=True)
    source = records(run=runs, part=kinds, order=order, bytes=size, size=text)
    size_of = alt.X("bytes:Q", stack="zero", scale=alt.Scale(nice=False), axis=bytes_axis("of one GPU", most))
    return _bar_a_run(source, list(plans), size_of, palette(names, "part")).encode(
        tooltip=["run:N", "part:N", "size:N"]
    )


def address_map(
    result: Result, at_s: float | None = None, end_s: float | None = None, high: float | None = None
) -> alt.Chart | alt.LayerChart | None:
    """Bytes of the pool against time, coloured by request, up to `end_s` or the run's end and up to `high` bytes or the
    last that was ever used; a line at `at_s`. None where the run recorded no map."""
    pieces = data.memory_map(result)
    if not len(pieces.owner):
        return None
    begin, until, start, end, owner = pieces.begin, pieces.until, pieces.start, pieces.end, pieces.owner
    if len(owner) > EXACT:
        begin, until, start, end, owner = _raster(pieces)
    source = records(
        t=begin,
        t2=until,
        a=start,
        a2=end,
        request=owner,
        colour=_colour(owner),
        size=[format_bytes(x) for x in (end - start)],
    )
    top = max(float(end.max()), high or 0.0)
    chart = (
        alt.Chart(source, height=420)
        .mark_rect(opacity=0.9, clip=True)
        .encode(
            x=time_axis("t:Q", end_s or float(until.max())),
            x2="t2:Q",
            y=alt.Y("a:Q", scale=alt.Scale(domain=[0, top], nice=False), axis=bytes_axis("address", top)),
            y2="a2:Q",
            color=_owner_scale(),
            tooltip=[
                alt.Tooltip("request:Q", title="request (−1: idle prefix)"),
                alt.Tooltip("size:N"),
                alt.Tooltip("t:Q", title="s", format=".1f"),
            ],
        )
    )
    if at_s is None:
        return chart
    line = alt.Chart(records(t=[at_s])).mark_rule(color=GREY, strokeWidth=2, strokeDash=[4, 3]).encode(x="t:Q")
    return alt.layer(chart, line)


def moments(result: Result) -> list[float]:
    """The times, in seconds, at which the map was recorded."""
    return sorted(set(data.memory_map(result).begin.tolist()))


def block_grid(result: Result, at_s: float, high: float | None = None, columns: int = 64, rows: int = 24) -> alt.Chart:
    """The pool at one moment as a grid that is read like a page: each cell an equal part of its first `high` bytes, or
    of the bytes ever used."""
    pieces = data.memory_map(result)
    here = pieces.begin == at_s
    cells = columns * rows
    size = max(float(pieces.end.max()), high or 0.0) / cells
    owner = _owners(pieces.start[here], pieces.end[here], pieces.owner[here], cells, size)
    place = np.arange(cells)
    source = records(
        x=place % columns,
        y=place // columns,
        request=owner,
        colour=_colour(owner, -2),
        who=[{-2: "free", -1: "idle prefix blocks"}.get(o, f"request {o}") for o in owner.tolist()],
    )
    return (
        alt.Chart(source, height=16 * rows)
        .mark_rect(stroke=GREY, strokeWidth=0.4, strokeOpacity=0.5)
        .encode(
            x=alt.X("x:O", axis=None, scale=alt.Scale(paddingInner=0.12)),
            y=alt.Y("y:O", axis=None, scale=alt.Scale(paddingInner=0.12)),
            color=_owner_scale(),
            tooltip=[alt.Tooltip("who:N", title=" ")],
        )
    )


def _owners(start: Float, end: Float, owner: NDArray[np.int64], cells: int, size: float) -> NDArray[np.int64]:
    """Who holds the middle of each cell; −2: no one."""
    found = np.full(cells, -2, np.int64)
    middle = (np.arange(cells) + 0.5) * size
    for low, high, who in zip(start.tolist(), end.tolist(), owner.tolist(), strict=True):
        found[np.searchsorted(middle, low) : np.searchsorted(middle, high)] = who
    return found


def _raster(pieces: data.MemoryMap, cells: int = 128) -> tuple[Float, Float, Float, Float, NDArray[np.int64]]:
    """A map of many small pieces as equal cells of address, runs of one owner joined."""
    size = float(pieces.end.max()) / cells
    out: list[tuple[float, float, float, float, int]] = []
    times = np.unique(pieces.begin)
    times = times[:: max(1, -(-len(times) // 48))]
    ends = np.append(times[1:], pieces.until.max())
    for t, t2 in zip(times.tolist(), ends.tolist(), strict=True):
        here = pieces.begin == t
        owners = _owners(pieces.start[here], pieces.end[here], pieces.owner[here], cells, size)
        edges = np.concatenate([[0], np.flatnonzero(np.diff(owners)) + 1, [cells]])
        out += [
            (t, t2, low * size, high * size, int(owners[low]))
            for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
            if owners[low] != -2
        ]
    columns = np.array(out, float).reshape(-1, 5)
    begin, until, start, end = columns[:, :4].T
    return begin, until, start, end, columns[:, 4].astype(np.int64)


_CYCLE = len(SERIES) - 1


def _colour(owner: NDArray[np.int64], free: int | None = None) -> list[str]:
    return ["idle" if o == -1 else "free" if o == free else f"c{o % _CYCLE}" for o in owner.tolist()]


def _owner_scale() -> alt.Color:
    domain = [*(f"c{i}" for i in range(_CYCLE)), "idle", "free"]
    return alt.Color(
        "colour:N",
        legend=None,
        scale=alt.Scale(domain=domain, range=[*SERIES[:_CYCLE], IDLE, "rgba(138,143,152,0.08)"]),
    )
