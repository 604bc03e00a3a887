"""The part of a run in which traffic is at its full rate, and what held it back there.

Sped-up traffic brings conversations faster, not people's think times: after the last conversation has begun, follow-ups
trickle in for as long as people think. A rate that is averaged over that tail is not the rate that was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from kvsim.plan.limit import binding, facts
from kvsim.result import STATUS, Result
from kvsim.setup import Setup
from kvsim.units import NS_PER_S


@dataclass(frozen=True)
class Steady:
    """A run until its last conversation begins: `result` holds the requests, steps and samples of that time."""

    result: Result
    window_s: float
    itl_p99: float | None
    """of the whole run, in seconds: gaps are pooled"""

    @property
    def rate(self) -> float:
        """Requests that arrived a second."""
        return self.result.requests.height / self.window_s

    @property
    def output_rate(self) -> float:
        """Output tokens a second, a request's spread evenly from its first to its last."""
        done = self.result.requests.filter(pl.col("first_token_ns") >= 0)
        first, last, tokens = (done[c].to_numpy() for c in ("first_token_ns", "last_token_ns", "output_tokens"))
        share = (self.window_s * NS_PER_S - first) / np.maximum(last - first, 1)
        return float((tokens * np.clip(share, 0.0, 1.0)).sum()) / self.window_s


def steady(result: Result) -> Steady:
    """The whole run where everything arrives at once."""
    requests = result.requests.filter(pl.col("arrival_ns") >= 0)
    alone = pl.when(pl.col("session") < 0).then(-1 - pl.col("id")).otherwise(pl.col("session"))
    begins = requests.group_by(session=alone.fill_null(-1 - pl.col("id"))).agg(pl.col("arrival_ns").min())["arrival_ns"]
    gap = result.summary["latency_s"]["itl"]["p99"]
    end = int(begins.max() or 0)  # type: ignore[arg-type]
    if not end:
        last = int(requests["last_token_ns"].max() or 0)  # type: ignore[arg-type]
        return Steady(result, max(last, 1) / NS_PER_S, gap)
    part = replace(
        result,
        requests=requests.filter(pl.col("arrival_ns") <= end),
        steps=result.steps.filter(pl.col("start_ns") <= end),
        timeline=result.timeline.filter(pl.col("t_ns") <= end),
    )
    return Steady(part, end / NS_PER_S, gap)


def limit(run: Steady, setup: Setup, missed: tuple[str, ...]) -> tuple[str, str]:
    """(what binds, a sentence that says why), as `kvsim plan` tells it."""
    recorded: Any = _Recorded(run.result)
    return binding(missed, facts(recorded, setup))


class _Recorded:
    """A Result as the run that kvsim.plan.limit looks at: arrays by column."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.record = self.trace = self
        self.output_tokens = result.requests["output_tokens"].to_numpy()

    def __len__(self) -> int:
        return self.result.requests.height

    def step_columns(self) -> dict[str, np.ndarray]:
        return _columns(self.result.steps)

    def timeline_columns(self) -> dict[str, np.ndarray]:
        return _columns(self.result.timeline)

    def request_columns(self) -> dict[str, np.ndarray]:
        frame = self.result.requests.drop("reason")
        codes = {name: code for code, name in enumerate(STATUS)}
        return _columns(frame.with_columns(pl.col("status").replace_strict(codes, return_dtype=pl.Int64)))


def _columns(frame: pl.DataFrame) -> dict[str, np.ndarray]:
    return {name: frame[name].fill_null(-1).to_numpy() for name in frame.columns}
