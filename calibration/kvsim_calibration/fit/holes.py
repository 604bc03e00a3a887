"""Places on a kernel's grid where no row may be used (held out) take the course of the kernels like it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvsim.cost.line import Floats
from kvsim.cost.lookup import attention_distance
from kvsim_calibration.evaluate import attention_key, groups
from kvsim_calibration.rows import KEY

ENOUGH = 16.0
"""sum of inverse distances at which a hole has heard enough kernels"""


def filled(x: Floats, grid: Floats, distance: Floats) -> Floats:
    """grid[kernel, x] without holes (NaN). The cliffs of like kernels lie at the same x, so a hole takes the value of
    each near kernel that was measured there, scaled by how the two compare on both sides of it (in log, linearly over
    x, constant beyond the last place that both know), and of these the mean; else a chord of its own.

    `distance[i, j]` between kernels; infinite: not alike."""
    known = ~np.isnan(grid)
    logs = np.log(grid)
    result = grid.copy()
    for i, row in enumerate(logs):
        if known[i].all() or not known[i].any():
            continue
        total, weights = np.zeros(len(x)), np.zeros(len(x))
        for j in np.argsort(distance[i], kind="stable"):
            common = known[i] & known[j]
            if j == i or not np.isfinite(distance[i, j]) or not common.any():
                continue
            said = logs[j] + np.interp(x, x[common], (row - logs[j])[common])
            weight = np.where(known[j] & (weights < ENOUGH), 1 / max(float(distance[i, j]), 0.1), 0.0)
            total += np.where(weight > 0, said * weight, 0.0)
            weights += weight
            if (weights >= ENOUGH)[~known[i]].all():
                break
        chord = np.interp(x, x[known[i]], row[known[i]])
        mean = np.where(weights > 0, total / np.maximum(weights, 1e-9), chord)
        result[i] = np.where(known[i], grid[i], np.exp(mean))
    return result


def borrowed(train: pl.DataFrame, holes: pl.DataFrame, outer: Sequence[str], inner: str) -> pl.DataFrame:
    """`train` (with `ratio`) and, for each of the places of `holes`, a row with the ratio that like kernels suggest.

    Rows are attention kernels over `inner` for equal values of `outer`; kernels of another head size or window are
    not alike."""
    columns = [*KEY, *outer, inner]
    places = holes.select(columns).unique().join(train.select(columns), on=columns, how="anti")
    keys = [key for key, _ in groups(train.select(KEY).unique(), KEY)]
    index = {tuple(key.values()): i for i, key in enumerate(keys)}
    made = [attention_key(key) for key in keys]
    apart = np.array([[attention_distance(a, b) if (a.head_dim, a.window) == (b.head_dim, b.window) else np.inf
                       for b in made] for a in made])
    added = []
    wanted = dict(iter((tuple(at.values()), rows) for at, rows in groups(places, tuple(outer))))
    for at, rows in groups(train, tuple(outer)):
        gaps = wanted.get(tuple(at.values()))
        if gaps is None:
            continue
        gaps = gaps.filter(pl.struct(KEY).is_in(rows.select(pl.struct(KEY)).to_series().implode()))
        x = np.array(sorted({*rows[inner], *gaps[inner]}), dtype=float)
        grid = np.full((len(keys), len(x)), np.nan)
        merged = rows.group_by(*KEY, inner).agg(pl.col("ratio").median())
        for *key, value, ratio in merged.select(*KEY, inner, "ratio").iter_rows():
            grid[index[tuple(key)], np.searchsorted(x, value)] = ratio
        full = filled(x, grid, apart)
        full[~_befriended(grid, apart)] = np.nan  # alone: interpolation in the table does better than along `inner`
        ratios = [full[index[tuple(key)], np.searchsorted(x, value)]
                  for *key, value in gaps.select(*KEY, inner).iter_rows()]
        added.append(gaps.with_columns(ratio=pl.Series(ratios, dtype=pl.Float64)).filter(pl.col("ratio").is_not_nan()))
    return pl.concat([train, *(frame.select([*columns, "ratio"]) for frame in added)], how="diagonal")


def _befriended(grid: Floats, distance: Floats) -> NDArray[np.bool_]:
    """Whether a kernel has another like it with rows."""
    measured = np.array([not np.isnan(row).all() for row in grid])
    return np.array([any(measured[j] and np.isfinite(distance[i, j]) for j in range(len(grid)) if j != i)
                     for i in range(len(grid))])
