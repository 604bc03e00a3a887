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

NEIGHBOURS = 6
"""kernels that a hole is filled from"""


def filled(x: Floats, grid: Floats, distance: Floats) -> Floats:
    """grid[kernel, x] without holes (NaN). The cliffs of like kernels lie at the same x, so a hole takes their mean
    course over x, scaled to meet the kernel's own values on both sides (constant scale beyond the last of them).

    `distance[i, j]` between kernels; infinite: not alike."""
    known = ~np.isnan(grid)
    along = np.array([np.interp(x, x[k], row[k]) if k.any() else row for k, row in zip(known, grid, strict=True)])
    result = grid.copy()
    for i, row in enumerate(grid):
        k = known[i]
        if not k.any() or k.all():
            continue
        near = [j for j in np.argsort(distance[i], kind="stable") if j != i and known[j].any()][:NEIGHBOURS]
        near = [j for j in near if np.isfinite(distance[i, j])]
        course = np.ones(len(x))
        if near:
            values = np.where(known[near], grid[near], along[near])
            course = np.exp(np.average(np.log(values), axis=0, weights=1 / np.maximum(distance[i, near], 0.1)))
        result[i] = np.where(k, row, course * np.interp(x, x[k], row[k] / course[k]))
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
                       for b in made] for a in made])  # fmt: skip
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
                  for *key, value in gaps.select(*KEY, inner).iter_rows()]  # fmt: skip
        added.append(gaps.with_columns(ratio=pl.Series(ratios, dtype=pl.Float64)).filter(pl.col("ratio").is_not_nan()))
    return pl.concat([train, *(frame.select([*columns, "ratio"]) for frame in added)], how="diagonal")


def _befriended(grid: Floats, distance: Floats) -> NDArray[np.bool_]:
    """Whether a kernel has another like it with rows."""
    measured = np.array([not np.isnan(row).all() for row in grid])
    return np.array([any(measured[j] and np.isfinite(distance[i, j]) for j in range(len(grid)) if j != i)
                     for i in range(len(grid))])  # fmt: skip
