"""What the charts show, as small arrays. Pure functions of a Result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvsim.metrics import latencies
from kvsim.result import MEMORY, Result
from kvsim.units import NS_PER_S

Float = NDArray[np.float64]

_SHARES: Float = np.unique(np.concatenate([np.linspace(0, 1, 201), 1 - np.geomspace(0.005, 0.0005, 10)]))


@dataclass(frozen=True, slots=True)
class Cdf:
    """A cumulative distribution at a few hundred points: `share[i]` of all values are at most `value[i]` seconds."""

    value: Float
    share: Float


@dataclass(frozen=True, slots=True)
class Series:
    """Means over equal bins of time. `time` holds the bins' edges in seconds, one more than each of `values`."""

    time: Float
    values: dict[str, Float]


def cdf(result: Result, metric: str) -> Cdf:
    """The distribution of ttft, tpot, itl, e2e or queue; empty where nothing is defined."""
    if metric == "itl":
        values, counts = result.itl["gap_ns"].to_numpy() / NS_PER_S, result.itl["count"].to_numpy()
        if not len(values):
            return Cdf(values, values)
        ends = np.cumsum(counts)
        places = np.searchsorted(ends, _SHARES * (ends[-1] - 1), side="right")
        return Cdf(values[np.minimum(places, len(values) - 1)], _SHARES)
    column = latencies(result.requests)[metric].drop_nulls().to_numpy()
    return Cdf(np.quantile(column, _SHARES), _SHARES) if len(column) else Cdf(column, column)


def memory_over_time(result: Result, bins: int = 240) -> Series:
    """Shares of the KV pool by category, all replicas together; they add up to 1. Empty where there is no pool."""
    series = _means(result, MEMORY, bins)
    pool = sum(series.values.values(), start=np.zeros(max(len(series.time) - 1, 0)))
    if not pool.any():
        return Series(series.time[:0], {})
    return Series(series.time, {name: values / np.where(pool, pool, 1) for name, values in series.values.items()})


def load_over_time(result: Result, bins: int = 240) -> Series:
    """Running and waiting requests, all replicas together."""
    return _means(result, ("running", "waiting"), bins)


def end_of(runs: Mapping[str, Result]) -> float:
    """The last moment any run shows, in seconds."""
    return max((float(s.time[-1]) for s in map(load_over_time, runs.values()) if len(s.time)), default=1.0)


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Who held which bytes of the pool: piece i is [start, end) bytes from `begin` to `until` seconds.

    `owner` is a row of the trace; −1: idle prefix blocks.
    """

    begin: Float
    until: Float
    start: Float
    end: Float
    owner: NDArray[np.int64]


def memory_map(result: Result, slices: int = 80) -> MemoryMap:
    """The pieces of the first replica's pool at no more than about `slices` moments."""
    frame = result.memory_map
    if not frame.is_empty():
        frame = frame.filter(frame["replica"] == frame["replica"].min())
    moments = np.unique(frame["t_ns"].to_numpy())
    moments = moments[:: max(1, -(-len(moments) // slices))]
    frame = frame.filter(frame["t_ns"].is_in(moments.tolist()))
    times, start, end, owner = (frame[name].to_numpy() for name in ("t_ns", "start", "end", "row"))
    usual = int(np.median(np.diff(moments))) if len(moments) > 1 else NS_PER_S
    after = np.append(moments[1:], moments[-1:] + usual)
    until = np.minimum(after, moments + usual)[np.searchsorted(moments, times)]
    return MemoryMap(times / NS_PER_S, until / NS_PER_S, start.astype(np.float64), end.astype(np.float64), owner)


def pool_bytes(result: Result) -> float:
    """The size of the first replica's KV pool, whose pieces `memory_map` returns; 0 where the run recorded none."""
    frame = result.timeline
    if frame.is_empty():
        return 0.0
    first = frame.filter(frame["replica"] == frame["replica"].min())
    return float(first.select(pl.sum_horizontal(MEMORY).max()).item())


def _means(result: Result, columns: tuple[str, ...], bins: int) -> Series:
    """Sums over replicas of each column's mean over time in each bin, exactly: integrals of steps, differenced."""
    frame = result.timeline
    if frame.is_empty():
        return Series(np.zeros(0), {})
    end = max(frame["t_ns"].max(), result.steps["end_ns"].max() or 0)  # type: ignore[type-var]
    edges = np.linspace(frame["t_ns"].min(), end, bins + 1)  # type: ignore[arg-type]
    if edges[0] == edges[-1]:
        return Series(np.zeros(0), {})
    totals = {name: np.zeros(bins) for name in columns}
    for _, part in frame.group_by("replica"):
        rows = part.sort("t_ns", maintain_order=True).select("t_ns", *columns)
        times = np.append(rows["t_ns"].to_numpy().astype(np.float64), edges[-1])
        for name in columns:
            areas = rows[name].to_numpy() * np.diff(times)
            totals[name] += np.diff(np.interp(edges, times, np.concatenate([[0.0], np.cumsum(areas)])))
    width = edges[1] - edges[0]
    return Series(edges / NS_PER_S, {name: total / width for name, total in totals.items()})
