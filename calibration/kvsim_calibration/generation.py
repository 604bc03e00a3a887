"""Uncached against cached, measured: the time to generate n tokens by computing everything again, and with a KV cache.

Recomputing adds a forward over n tokens for the n-th one: quadratic. With a cache a token costs about the same each
time: linear. The file lies beside the profile and is drawn in its report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import InputError
from kvsim.report.files import write_text

if TYPE_CHECKING:
    from kvsim.cost.line import Floats
    from kvsim_calibration.engine.model import Llama

FORMAT = 1
FEWEST = 8
"""tokens below which there is no curve"""


@dataclass(frozen=True)
class Generation:
    """ns from the start of an answer to each of its tokens, median of the runs; the prompt is one token."""

    model: str
    machine: str
    dtype: str
    torch: str
    date: str
    cached_ns: list[float]
    uncached_ns: list[float]
    format: int = FORMAT

    @property
    def crossover(self) -> int:
        """Tokens from which on the cache is ahead for good."""
        behind = np.flatnonzero(np.asarray(self.cached_ns) >= np.asarray(self.uncached_ns))
        return int(behind[-1]) + 2 if len(behind) else 1

    @property
    def ahead(self) -> float:
        """How many times faster the whole answer is with the cache."""
        return self.uncached_ns[-1] / self.cached_ns[-1]

    def growth(self) -> tuple[float, float]:
        """(cached, uncached): how the time grows over the last quarter of the answer, as an exponent of n."""
        at = np.log(np.arange(1, len(self.cached_ns) + 1))[-max(2, len(self.cached_ns) // 4) :]
        each = (np.log(np.asarray(ns))[-len(at) :] for ns in (self.cached_ns, self.uncached_ns))
        cached, uncached = (float(np.polyfit(at, values, 1)[0]) for values in each)
        return cached, uncached

    def sentence(self) -> str:
        """What was seen."""
        cached, uncached = self.growth()
        n = len(self.cached_ns)
        start = "from the first token on" if self.crossover == 1 else f"from {self.crossover} tokens on"
        return (f"The cache is ahead {start}; at {n:,} tokens it is {self.ahead:.1f} times as fast. In the last "
                f"quarter time grows as n^{uncached:.2f} without a cache and as n^{cached:.2f} with it.")

    def save(self, path: Path) -> None:
        """As JSON."""
        write_text(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> Generation:
        """Raises InputError for a file that `save` did not write."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            found = cls(**data)
            if found.format != FORMAT:
                raise ValueError(f"format {found.format}")
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path} is no file of `kvsim calibrate generation`: {error}") from None
        return found


def path_beside(profile: Path) -> Path:
    """`a100.json` → `a100.generation.json`."""
    return profile.with_name(profile.name.removesuffix(".json") + ".generation.json")


def measure(
    name: str, machine: str, tokens: int, seconds: float, device: str, dtype: str,
    tell: Callable[[float, float], None] = lambda done, total: None,
) -> Generation:  # fmt: skip
    """Generate `tokens` tokens with and without a cache in turn, as often as the time allows, once at least: then with
    fewer tokens where the time is short. Raises InputError where it is too short for a curve."""
    import torch

    from kvsim.model import load_model
    from kvsim_calibration.engine.model import Dims, Llama
    from kvsim_calibration.engine.setup import DTYPES

    model = Llama.random(Dims.of(load_model(name)), 0, DTYPES[dtype], device)
    _runs(model, min(tokens, FEWEST), float("inf"))  # warm
    cached, uncached = [], []
    begin, longest = time.monotonic(), 0.0
    while not cached or time.monotonic() - begin + longest < seconds:
        start = time.monotonic()
        with_cache, without = _runs(model, tokens, seconds)
        longest, tokens = max(longest, time.monotonic() - start), len(without)
        cached.append(with_cache)
        uncached.append(without)
        tell(time.monotonic() - begin, seconds)
    if tokens < FEWEST:
        raise InputError(f"{seconds:g} s are too short for {FEWEST} tokens of {name} without a cache: more --budget")
    return Generation(name, machine, dtype, torch.__version__, date.today().isoformat(), _median(cached, tokens),
                      _median(uncached, tokens))  # fmt: skip


def _runs(model: Llama, tokens: int, seconds: float) -> tuple[list[int], list[int]]:
    """ns to each token with a cache, and without one for as many tokens as `seconds` allow."""
    from kvsim_calibration.engine.caches import Contiguous
    from kvsim_calibration.engine.generate import generate

    _, cached = generate(model, [1], tokens, Contiguous(model.rows(), 1, tokens + 1))
    _, uncached = generate(model, [1], tokens, limit_ns=seconds * 1e9)
    return cached, uncached


def _median(runs: list[list[int]], tokens: int) -> list[float]:
    found: Floats = np.median([run[:tokens] for run in runs], axis=0)
    return found.tolist()
