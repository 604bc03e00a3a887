"""Places on a kernel's grid where no row may be used (held out) take the course of the kernels like it; so do rows that
are no measurement of the kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvsim.cost.line import Floats
from kvsim.cost.lookup import attention_distance
from kvsim_calibration.evaluate import attention_key, groups
from kvsim_calibration.rows import KEY

LIKE = 24
"""kernels that are asked, the nearest ones"""
REACH = 16
"""places on either side of a cell at which two kernels are compared"""
NEAREST = 0.1
"""distance under which a kernel gets no more weight"""
GLITCH = 0.15
"""relative miss from which a row is no measurement of the kernel, if its neighbours and the kernels like it agree on
that (B200, fp8: one row in twenty took twice as long as the rows around it)"""


def expected(grid: Floats, distance: Floats, reach: int = REACH) -> Floats:
    """What the kernels like it say of each cell of grid[kernel, place], the cell's own value unseen; NaN where no
    like kernel knows.

    The cliffs of like kernels lie at the same places. So each says its own value there, scaled by how the two compare
    around the cell: the median over `reach` places on either side, near ones weighing more. Of what they say the median
    counts, like ones weighing more. Medians, since some rows are off by a factor: with means, B200's fp8 GEMMs were
    off by 6.5 %, with medians by 1.5 %."""
    logs, (kernels, places) = np.log(grid), grid.shape
    steps = np.array([d for d in range(-reach, reach + 1) if d and abs(d) < places])
    around = np.arange(places) + steps[:, None]
    inside = (around >= 0) & (around < places)
    near = np.where(inside, 1 / np.abs(steps)[:, None], 0.0)
    around = np.clip(around, 0, places - 1)
    said = np.full(grid.shape, np.nan)
    for i in range(kernels):
        others = [j for j in np.argsort(distance[i], kind="stable") if j != i and np.isfinite(distance[i, j])][:LIKE]
        if not others or not len(steps):
            continue
        compared = (logs[i] - logs[others])[:, around]
        scale = _median(np.moveaxis(compared, 1, 0), near[:, None])
        weight = 1 / np.maximum(distance[i, others], NEAREST)
        said[i] = _median(logs[others] + scale, weight[:, None])
    return np.exp(said)


def _median(values: Floats, weights: Floats) -> Floats:
    """Weighted median along the first axis, NaN and weight 0 ignored; NaN where nothing is left. Where half of the
    weight lies on either side, the mean of the two values there."""
    weights = np.where(np.isnan(values), 0.0, weights)
    values = np.where(weights > 0, values, np.inf)
    order = np.argsort(values, axis=0)
    values = np.take_along_axis(values, order, 0)
    below = np.cumsum(np.take_along_axis(weights, order, 0), axis=0)
    half = below[-1] / 2
    low, high = (np.take_along_axis(values, reached.argmax(axis=0)[None], 0)[0]
                 for reached in (below >= half * (1 - 1e-9), below > half * (1 + 1e-9)))
    return np.where(half > 0, (low + high) / 2, np.nan)


def filled(x: Floats, grid: Floats, distance: Floats, reach: int = REACH) -> Floats:
    """grid[kernel, x] without holes (NaN) and glitches: they take what like kernels say (`expected`), a hole without
    any a chord of its own. A glitch is off by GLITCH, to the same side, from that and from both of its neighbours.

    `distance[i, j]` between kernels; infinite: not alike."""
    result, said = grid.copy(), expected(grid, distance, reach)
    for row, like in zip(result, said, strict=True):
        known = np.flatnonzero(~np.isnan(row))
        if not len(known):
            continue
        chord = np.exp(np.interp(x, x[known], np.log(row[known])))
        inner = known[1:-1]
        off = row[inner] / np.stack([row[known[:-2]], row[known[2:]], like[inner]])
        glitch = (off > 1 + GLITCH).all(axis=0) | (off < 1 / (1 + GLITCH)).all(axis=0)
        row[inner[glitch]] = np.nan
        row[:] = np.where(~np.isnan(row), row, np.where(np.isnan(like), chord, like))
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
