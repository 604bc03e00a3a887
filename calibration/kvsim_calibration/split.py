"""Which rows no fit may see: a seeded fifth of the points, and a seeded fifth of whole keys.

A row's fate hangs on its own values and the seed only: not on its place in the file, nor on the other rows."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

SHARE = 0.2
SEED = 7

Mask = NDArray[np.bool_]


def held_out(frame: pl.DataFrame, columns: Sequence[str], seed: int = SEED, share: float = SHARE) -> Mask:
    """True for about `share` of the distinct values of `columns`."""
    state = np.full(frame.height, (seed * 0x9E3779B97F4A7C15 + 1) % 2**64, dtype=np.uint64)
    for name in columns:
        state = _mixed(state ^ _integers(frame[name]))
    return np.asarray(state >> np.uint64(11)) < share * 2**53


def _integers(column: pl.Series) -> NDArray[np.uint64]:
    if column.dtype == pl.String:
        codes = {text: zlib.crc32(text.encode()) for text in column.unique()}
        return np.array([codes[text] for text in column], dtype=np.uint64)
    return column.cast(pl.Float64).to_numpy().view(np.uint64)


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
