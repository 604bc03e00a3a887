"""Steps that hold prefill and decode, and batches of unequal lengths: what they cost beside the sums and means."""

from __future__ import annotations

import numpy as np
import polars as pl

from kvsim.cost.line import Floats
from kvsim.device import DeviceProfile, MixedCurve, SkewTable
from kvsim_calibration.evaluate import attention_key, groups, predict
from kvsim_calibration.fit.attention import floats
from kvsim_calibration.fit.thin import rounded
from kvsim_calibration.rows import KEY

AXES = ("tokens", "context", "n", "attended")
DIGITS = 2
"""decimals of a fused ratio: the table is large, its noise a few percent"""
SKEWS = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
"""longest ÷ mean at which alpha has a knot"""


def mixed_curves(frame: pl.DataFrame, profile: DeviceProfile, source: str, tolerance: float) -> list[MixedCurve]:
    """Fused time ÷ (prefill + decode as `profile` predicts them), key by key, over as few knots as do."""
    apart = profile.model_copy(update={"curves": profile.curves.model_copy(update={"mixed": ()})})
    curves = []
    for key, rows in groups(frame, KEY):
        rows = rows.with_columns(ratio=rows["ns"].to_numpy() / predict(apart, "mixed", rows))
        regular = pl.all_horizontal(_power_of_two(name) for name in AXES)
        first = rows.filter(regular)
        axes, cube = _cube(first)
        axes, cube = _more_chunks(axes, cube, rows.filter(~regular, ~pl.col("tokens").is_in(first["tokens"].implode())))
        axes, cube = _thinned(axes, cube, tolerance)
        values = np.round(cube, DIGITS)
        curves.append(MixedCurve(key=attention_key(key), tokens=tuple(axes[0]), context=tuple(axes[1]),
                                 sequences=tuple(axes[2]), attended=tuple(axes[3]), ratio=_nested(values),
                                 source=source))
    return curves


def _power_of_two(column: str) -> pl.Expr:
    """What makes the first grid."""
    value = pl.col(column)
    return (value & (value - 1)) == 0


def _nested(cube: Floats) -> tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]:
    return tuple(tuple(tuple(tuple(row) for row in plane) for plane in block) for block in cube.tolist())


def _more_chunks(axes: list[Floats], cube: Floats, rows: pl.DataFrame) -> tuple[list[Floats], Floats]:
    """The grid with the chunk lengths of `rows`, a second grid off the powers of two. What this one says beside the
    first is smooth along contexts and lengths, so there its knots are not needed; along chunks it is not (tiles,
    waves: without those knots 13.3 % at p95 instead of 10)."""
    if not rows.height:
        return axes, cube
    others, finer = _cube(rows)
    coarse = _resampled(cube, 0, axes[0], others[0])
    there = coarse
    for d in (1, 2, 3):
        there = _resampled(there, d, axes[d], others[d])
    beside = finer / there
    for d in (1, 2, 3):
        beside = _resampled(beside, d, others[d], axes[d])
    tokens = np.concatenate([axes[0], others[0]])
    order = np.argsort(tokens)
    return [tokens[order], *axes[1:]], np.concatenate([cube, coarse * beside])[order]


def _resampled(cube: Floats, dimension: int, old: Floats, new: Floats) -> Floats:
    """The cube with `new` knots along one axis, linear between the old ones and constant beyond them."""
    lines = np.moveaxis(cube, dimension, 0)
    high = np.clip(np.searchsorted(old, new), 1, max(len(old) - 1, 1))
    low, high = high - 1, np.minimum(high, len(old) - 1)
    span = np.where(high > low, old[high] - old[low], 1.0)
    share = (np.clip((new - old[low]) / span, 0.0, 1.0))[:, None, None, None]
    return np.moveaxis(lines[low] + share * (lines[high] - lines[low]), 0, dimension)


def _cube(rows: pl.DataFrame) -> tuple[list[Floats], Floats]:
    """(axes, ratios) of a full grid. A hole is the mean of what interpolation along each axis says, weighted by how
    well that axis predicts the known cells; knots are spaced in octaves, so interpolation here is between indices."""
    axes = [np.array(sorted(rows[name].unique()), dtype=float) for name in AXES]
    cube = np.full([len(axis) for axis in axes], np.nan)
    places = tuple(np.searchsorted(axis, column) for axis, column in zip(axes, floats(rows, *AXES), strict=True))
    cube[places] = rows["ratio"].to_numpy()
    while np.isnan(cube).any():
        guesses, trust = zip(*(_along(cube, d) for d in range(4)), strict=True)
        weight = np.where(np.isnan(guesses), 0.0, trust)
        with np.errstate(invalid="ignore"):
            guess = np.nansum(guesses * weight, axis=0) / weight.sum(axis=0)
        cube = np.where(np.isnan(cube), guess, cube)
    return axes, cube


def _along(cube: Floats, dimension: int) -> tuple[Floats, Floats]:
    """(guesses from the neighbours along one axis, their weights): the mean of two neighbours, else the one there is;
    NaN without any. A weight is 1 / (median relative miss on known cells)²."""
    lines = np.moveaxis(cube, dimension, 0)
    edge = np.full((1, *lines.shape[1:]), np.nan)
    below, above = np.concatenate([edge, lines[:-1]]), np.concatenate([lines[1:], edge])
    both = (below + above) / 2
    one = np.where(np.isnan(below), above, below)
    guess = np.where(np.isnan(both), one, both)
    weight = np.where(np.isnan(both), _trust(one, lines), _trust(both, lines))
    return np.moveaxis(guess, 0, dimension), np.moveaxis(weight, 0, dimension)


def _trust(guess: Floats, true: Floats) -> float:
    miss = np.abs(guess / true - 1)
    return float(1 / max(np.nanmedian(miss), 1e-3) ** 2) if (~np.isnan(miss)).any() else 1e-6


def _thinned(axes: list[Floats], cube: Floats, tolerance: float) -> tuple[list[Floats], Floats]:
    """Without the knots that their neighbours predict within `tolerance` in 90 of 100 cells, the least missed first."""
    while True:
        best: tuple[float, int, int] | None = None
        for d, axis in enumerate(axes):
            lines = np.moveaxis(cube, d, 0)
            for i in range(1, len(axis) - 1):
                share = (axis[i] - axis[i - 1]) / (axis[i + 1] - axis[i - 1])
                chord = lines[i - 1] + share * (lines[i + 1] - lines[i - 1])
                miss = float(np.quantile(np.abs(chord / lines[i] - 1), 0.9))
                if miss <= tolerance and (best is None or miss < best[0]):
                    best = (miss, d, i)
        if best is None:
            return axes, cube
        _, d, i = best
        axes = [np.delete(axis, i) if j == d else axis for j, axis in enumerate(axes)]
        cube = np.delete(cube, i, axis=d)


def skew_table(frame: pl.DataFrame) -> SkewTable:
    """alpha of time = t(mean) + alpha·(t(longest) − t(mean)): for each number of sequences a line over longest ÷ mean
    that misses the measured times least, relative. `ns_mean` and `ns_longest` are measured too."""
    sequences, alphas = [], []
    for key, rows in groups(frame, ("n",)):
        longest, mean, ns, low, high = floats(rows, "longest", "mean", "ns", "ns_mean", "ns_longest")
        sequences.append(float(key["n"]))
        alphas.append(rounded(_alpha(longest / mean, (ns - low) / ns, (high - low) / ns)))
    return SkewTable(sequences=tuple(sequences), skew=SKEWS, alpha=tuple(alphas))


def _alpha(skew: Floats, rise: Floats, span: Floats) -> Floats:
    """Non-negative values at SKEWS, at most 1, of the piecewise linear alpha with rise ≈ alpha·span."""
    from scipy.optimize import lsq_linear

    hats = np.stack([np.interp(skew, SKEWS, unit) for unit in np.eye(len(SKEWS))], axis=1) * span[:, None]
    smooth = 0.05 * np.diff(np.eye(len(SKEWS)), axis=0)  # knots without rows follow their neighbours
    found = lsq_linear(np.vstack([hats, smooth]), np.concatenate([rise, np.zeros(len(smooth))]), bounds=(0, 1))
    return np.clip(found.x, 0, 1)
