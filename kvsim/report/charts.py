"""The report's charts: Results → SVG. `runs` maps a name to each Result; run number i has the class `s{i}`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvsim.report import data
from kvsim.report.axes import clock_ticks, linear_ticks, log_ticks, percent_ticks
from kvsim.report.palette import SERIES
from kvsim.report.svg import Frame, bar
from kvsim.result import MEMORY, Result
from kvsim.units import GIB, format_bytes, format_duration

Runs = Mapping[str, Result]

PLAN = {
    "weights": "weights_bytes",
    "activations": "activation_bytes",
    "other": "other_bytes",
    "kv": "kv_bytes",
}


def latency_cdf(runs: Runs, metric: str) -> str:
    """Distribution of one latency under every policy, on a logarithmic axis; dots at the median and the 99th."""
    curves = {name: data.cdf(result, metric) for name, result in runs.items()}
    values = [curve.value[curve.value > 0] for curve in curves.values()]
    shown = np.concatenate(values) if values else np.zeros(0)
    if not len(shown):
        return ""
    low, high = _room(float(shown.min()), float(shown.max()))
    frame = Frame.make((low, high), (0, 1), log_x=True)
    marks = []
    for number, (name, curve) in enumerate(curves.items()):
        if not len(curve.value):
            continue
        marks.append(frame.line(curve.value, curve.share, f"s{number}", name))
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            value = float(np.interp(share, curve.share, curve.value))
            marks.append(frame.dot(value, share, f"s{number}", f"{name} {label}: {format_duration(value)}"))
    return frame.draw(f"{metric} distribution", log_ticks(low, high), percent_ticks(), marks)


def memory_over_time(result: Result, end_s: float) -> str:
    """The KV pool's shares by category; empty without a pool."""
    series = data.memory_over_time(result)
    if not series.values:
        return ""
    frame = Frame.make((0, end_s), (0, 1), height=210)
    layers = {name: series.values[name] for name in MEMORY}
    return frame.draw("KV pool over time", clock_ticks(end_s), percent_ticks(), frame.stack(series.time, layers))


def memory_map(result: Result, end_s: float) -> str:
    """Which bytes of one pool were whose, over time; a request keeps its colour. Empty where nothing was recorded."""
    pieces = data.memory_map(result)
    if not len(pieces.owner):
        return ""
    pool = (result.run.get("memory_plan") or {}).get("kv_bytes") or float(pieces.end.max())
    frame = Frame.make((0, end_s), (0, pool / GIB), height=210)
    colour = np.where(pieces.owner < 0, -1, pieces.owner % len(SERIES))
    marks = []
    for number in np.unique(colour).tolist():
        mine = colour == number
        corners = (pieces.begin[mine], pieces.until[mine], pieces.start[mine] / GIB, pieces.end[mine] / GIB)
        marks.append(frame.boxes(*corners, f"s{number}" if number >= 0 else "free"))
    ticks = [(value, f"{label} GiB") for value, label in linear_ticks(pool / GIB, 4)]
    return frame.draw("memory map", clock_ticks(end_s), ticks, marks)


def load_over_time(runs: Runs, column: str, end_s: float) -> str:
    """Running or waiting requests of every policy."""
    loads = {name: data.load_over_time(result) for name, result in runs.items()}
    high = max((float(load.values[column].max()) for load in loads.values() if load.values), default=0.0)
    top = max(high * 1.05, 1.0)
    frame = Frame.make((0, end_s), (0, top), height=210)
    marks = [
        frame.steps(load.time, load.values[column], f"busy s{number}", name)
        for number, (name, load) in enumerate(loads.items())
        if load.values
    ]
    return frame.draw(f"{column} requests over time", clock_ticks(end_s), linear_ticks(top), marks)


def memory_plan(result: Result) -> tuple[str, dict[str, str]]:
    """The bytes of one GPU as a bar, and the words for its legend; empty without a plan."""
    plan = result.run.get("memory_plan")
    if not plan or not plan.get("total_bytes"):
        return "", {}
    parts = {name: float(plan.get(key) or 0) for name, key in PLAN.items()}
    parts["unmanaged"] = max(plan["total_bytes"] - sum(parts.values()), 0)
    words = {
        name: f"{'KV cache' if name == 'kv' else name} {format_bytes(size)}" for name, size in parts.items() if size
    }
    return bar({name: parts[name] for name in words}, words), words


def end_of(runs: Runs) -> float:
    """The last moment any run shows, in seconds."""
    return max((float(s.time[-1]) for s in map(data.load_over_time, runs.values()) if len(s.time)), default=1.0)


def _room(low: float, high: float) -> tuple[float, float]:
    """A little space around a logarithmic range, and a visible width where it is a point."""
    if high / low < 1.5:
        low, high = low / 1.3, high * 1.3
    return low / 1.06, high * 1.06
