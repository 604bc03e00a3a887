"""Answers timed with a KV cache and without one, as `kvsim calibrate generation` writes them.

One such file comes with the app; others are read from the results folder (`*.generation.json`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvsim.errors import InputError
from kvsim.units import NS_PER_S
from kvsim_app.physics import Float
from kvsim_app.store import Store

BUNDLED = Path(__file__).with_name("cpu.generation.json")


@dataclass(frozen=True)
class Measured:
    """Seconds from the start of an answer to each of its tokens."""

    what: str
    """model, precision, machine, date"""
    cached: Float
    uncached: Float


def measured(store: Store) -> list[Measured]:
    """Of the results folder, then the bundled one. Raises InputError for a file that can't be read."""
    own = sorted(store.inside(path.name) for path in store.root.glob("*.generation.json"))
    return [_read(path) for path in (*own, BUNDLED)]


def _read(path: Path) -> Measured:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cached, uncached = (np.array(data[key], float) / NS_PER_S for key in ("cached_ns", "uncached_ns"))
        if cached.ndim != 1 or len(cached) != len(uncached) or len(cached) < 2 or not (cached > 0).all():
            raise ValueError("its two lists of times must be as long as each other")
        what = f"{data['model']}, {data['dtype']}, {data['machine']}, {data['date']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path.name} is no file of `kvsim calibrate generation`: {error}") from None
    return Measured(what, cached, uncached)
