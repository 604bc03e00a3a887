"""Kernels whose ratio hangs on one axis: linear layers and experts over m, memory and all-reduce over bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from kvsim.cost.line import Floats
from kvsim.device import CollectiveCurve, Facts, LinearTable, MemoryCurve, MoeCurve
from kvsim.device.dtypes import compute_dtype, element_bytes
from kvsim.device.forms import (
    CollectiveForm,
    MatmulForm,
    MemoryForm,
    collective_ns,
    matmul_ns,
    memory_ns,
    moe_ns,
)
from kvsim_calibration.evaluate import groups, moe_key
from kvsim_calibration.fit.attention import floats
from kvsim_calibration.fit.holes import LIKE, REACH, filled
from kvsim_calibration.fit.robust import fit, spread
from kvsim_calibration.fit.thin import knots, rounded
from kvsim_calibration.rows import KEYS

TILES = (1, 16, 64, 128)
"""rows that a block of a matrix kernel works on; small products are padded to it"""

APART = (3.0, 1.0)
"""how far log N and log K set two shapes apart: tiles and waves over m hang on N, on K hardly (H100, bf16: 3.1 %
against 3.4 % with equal weights)"""


def _best_tile(predict: Callable[[MatmulForm], Floats], ns: Floats) -> MatmulForm:
    """The form, and its tile, with the smallest median miss."""
    best: tuple[float, MatmulForm] | None = None
    for tile in TILES:
        def form(p: Floats, tile: int = tile) -> MatmulForm:
            return MatmulForm(fixed_ns=p[0], tile=tile, flop_efficiency=p[1], byte_efficiency=p[2])

        p = fit(lambda p, form=form: predict(form(p)), ns, [5_000, 0.6, 0.8])  # type: ignore[misc]
        miss = float(np.median(np.abs(predict(form(p)) / ns - 1)))
        if best is None or miss < best[0]:
            best = miss, form(p)
    assert best is not None
    return best[1]


def linear_form(frame: pl.DataFrame, facts: Facts) -> MatmulForm:
    """The constants for the linear layers of one dtype."""
    sample = frame[spread(frame.height)]
    n, k, m, ns = floats(sample, "n", "k", "m", "ns")
    dtype = frame["dtype"][0]
    return _best_tile(lambda form: matmul_ns(form, facts, n, k, m, element_bytes(dtype), compute_dtype(dtype),
                                             np.maximum), ns)


def linear_table(frame: pl.DataFrame, form: MatmulForm, facts: Facts, source: str, knots: int,
                 kept: set[tuple[int, int]] | None = None) -> LinearTable:
    """The `kept` shapes (all, unless told) of one dtype over one axis of at most `knots` values of m."""
    dtype = frame["dtype"][0]
    n, k, m, ns = floats(frame, "n", "k", "m", "ns")
    if "warm" in frame.columns:  # reading the weights from memory would have taken longer
        from_memory = n * k * element_bytes(dtype) * 1e9 / (form.byte_efficiency * facts.bandwidth)
        ns = np.where(frame["warm"].to_numpy(), np.maximum(ns, from_memory), ns)
    ratio = ns / matmul_ns(form, facts, n, k, m, element_bytes(dtype), compute_dtype(dtype), np.maximum)
    ms, shapes, grid = _grid(frame.with_columns(ratio=ratio))
    rows = [i for i, shape in enumerate(shapes) if kept is None or shape in kept]
    shapes, grid = [shapes[i] for i in rows], grid[rows]
    chosen = shared_knots(ms, grid, knots)
    return LinearTable(dtype=dtype, form=form, m=tuple(ms[chosen]), shapes=tuple(shapes),
                       ratio=tuple(rounded(row[chosen]) for row in grid), source=source)


def _grid(frame: pl.DataFrame) -> tuple[Floats, list[tuple[int, int]], Floats]:
    """(values of m, shapes, ratios[shape, m]), glitches and holes filled from their neighbours."""
    ms = np.array(sorted(frame["m"].unique()), dtype=float)
    column = {m: i for i, m in enumerate(ms)}
    shapes, rows = [], []
    for key, points in groups(frame, ("n", "k")):
        row = np.full(len(ms), np.nan)
        row[[column[m] for m in points["m"]]] = points["ratio"]
        shapes.append((key["n"], key["k"]))
        rows.append(row)
    place = np.log(np.array(shapes, dtype=float))
    distance = np.abs(place[:, None] - place[None]) @ np.array(APART)
    return ms, shapes, filled(ms, np.array(rows), distance, _reach(len(shapes), len(ms)))


def _reach(shapes: int, places: int) -> int:
    """Places around a hole at which shapes are compared. Those of one model are few and not very alike: they are over
    an eighth of the grid, 4 places of a CPU's 31 (its held-out p95 in three calibrations: 27, 14 and 14 % with 4, 31,
    21 and 20 % with 16), 16 of an RTX 4090's 152."""
    return REACH if shapes > LIKE else max(4, min(REACH, places // 8))


def shared_knots(x: Floats, grid: Floats, most: int) -> list[int]:
    """Columns to keep of grid[row, x]: greedily those whose absence hurts most, so that all others are interpolated
    with the smallest sum of relative misses. The ends stay."""
    kept = sorted({0, len(x) - 1})
    while len(kept) < min(most, len(x)):
        miss = np.abs(_interpolated(x, grid, kept) / grid - 1).mean(axis=0)
        if not miss.max() > 0:  # few rows, all of them hit
            break
        kept = sorted([*kept, int(miss.argmax())])
    return kept


def _interpolated(x: Floats, grid: Floats, kept: Sequence[int]) -> Floats:
    high = np.clip(np.searchsorted(x[kept], x, side="left"), 1, len(kept) - 1)
    left, right = np.array(kept)[high - 1], np.array(kept)[high]
    share = (x - x[left]) / (x[right] - x[left])
    value: Floats = grid[:, left] + share * (grid[:, right] - grid[:, left])
    return value


def moe_form(frame: pl.DataFrame, facts: Facts) -> MatmulForm:
    """The constants for the routed experts of one dtype."""
    sample = frame[spread(frame.height)]
    hidden, inter, experts, top_k, m, ns = floats(sample, "hidden", "inter", "experts", "top_k", "m", "ns")
    key: Any = type("Columns", (), {"hidden": hidden, "inter": inter, "experts": experts, "top_k": top_k})
    dtype = frame["dtype"][0]
    return _best_tile(lambda form: moe_ns(form, facts, key, m, element_bytes(dtype), compute_dtype(dtype),
                                          np.maximum), ns)


def moe_curves(frame: pl.DataFrame, form: MatmulForm, facts: Facts, source: str, tolerance: float) -> list[MoeCurve]:
    """A curve a key."""
    curves = []
    for key, rows in groups(frame, KEYS["moe"]):
        m, ns = floats(rows.sort("m"), "m", "ns")
        ratio = ns / moe_ns(form, facts, moe_key(key), m, element_bytes(key["dtype"]), compute_dtype(key["dtype"]),
                            np.maximum)
        chosen = knots(m, ratio, tolerance)
        curves.append(MoeCurve(key=moe_key(key), dtype=key["dtype"], form=form, m=tuple(m[chosen]),
                               ratio=rounded(ratio[chosen]), source=source))
    return curves


def memory_curves(frame: pl.DataFrame, facts: Facts, source: str, tolerance: float) -> list[MemoryCurve]:
    """A curve an operation and dtype, each with its own form."""
    curves = []
    for key, rows in groups(frame, KEYS["memory"]):
        bytes_, ns = floats(rows.group_by("bytes").agg(pl.col("ns").median()).sort("bytes"), "bytes", "ns")

        def form(p: Floats) -> MemoryForm:
            return MemoryForm(fixed_ns=p[0], efficiency=p[1])

        def predict(p: Floats, bytes_: Floats = bytes_, form: Callable[[Floats], MemoryForm] = form) -> Floats:
            predicted: Floats = memory_ns(form(p), facts.bandwidth, bytes_)
            return predicted

        p = fit(predict, ns, [2_500, 0.8])
        ratio = ns / predict(p)
        chosen = knots(bytes_, ratio, tolerance)
        curves.append(MemoryCurve(op=key["op"], dtype=key["dtype"], form=form(p), bytes=tuple(bytes_[chosen]),
                                  ratio=rounded(ratio[chosen]), source=source))
    return curves


def collective_curves(frame: pl.DataFrame, facts: Facts, source: str, tolerance: float) -> list[CollectiveCurve]:
    """A curve a number of GPUs, one form for all."""
    gpus, bytes_, ns = floats(frame, "gpus", "bytes", "ns")

    def form(p: Floats) -> CollectiveForm:
        return CollectiveForm(fixed_ns=p[0], efficiency=p[1])

    p = fit(lambda p: np.asarray(collective_ns(form(p), facts, gpus, bytes_)), ns, [6_000, 0.6])
    curves = []
    for key, rows in groups(frame, KEYS["collective"]):
        x, y = floats(rows.sort("bytes"), "bytes", "ns")
        ratio = y / collective_ns(form(p), facts, key["gpus"], x)
        chosen = knots(x, ratio, tolerance)
        curves.append(CollectiveCurve(gpus=key["gpus"], form=form(p), bytes=tuple(x[chosen]),
                                      ratio=rounded(ratio[chosen]), source=source))
    return curves
