"""`kvsim validate server`: a live server as the truth of a scenario that was predicted before it was asked.

First the engine's constants are fitted on batches of known size that the server runs (probe.py), not on the traffic
that counts. Then the scenario is simulated and, where a folder is given, saved; only then is its trace sent, several
times, with other prompts of the same lengths and shared beginnings each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvsim import __version__
from kvsim.errors import InputError
from kvsim.interval import interval, number
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.setup import Setup, prepare
from kvsim.simulate import results, trace_of
from kvsim.trace import Trace
from kvsim.validate.report import Goal, Report, Row
from kvsim_calibration.engine.constants import errors, fitted, words
from kvsim_calibration.measure.client import Load, Measurement
from kvsim_calibration.measure.http import HttpError, Server
from kvsim_calibration.measure.probe import Probe

METRICS = ("ttft_mean", "tpot_mean", "output_tokens_per_s")
GOALS = (Goal("", "max_abs", 0.06, "total_s"), *(Goal("", "max_abs", 0.08, name) for name in METRICS))
_REST = 0.02
"""widens the interval of the total time, as kvsim.interval does for throughput"""

Tell = Callable[[float, float], None]


@dataclass(frozen=True)
class Asked:
    """What is predicted, whom it is compared with, how often."""

    scenario: Scenario
    server: Server
    load: Load
    runs: int
    fit: bool
    out: Path | None = None
    """folder for `predicted` and `measured-1`, `measured-2` …"""

    async def report(self, progress: Tell) -> Report:
        """Raises InputError where the server does not answer, or some request fails."""
        setup, trace = prepare(self.scenario), trace_of(self.scenario)
        constants: dict[str, int] = {}

        def part(index: int) -> Tell:
            return lambda done, total: progress(index * total + done, (self.fit + self.runs) * total)

        if self.fit:
            setup, said = await self._fitted(setup, part(0))
            constants = {said: 1}
        found = results(trace, setup)
        self._save(found[0], "predicted")
        measured = []
        for run in range(self.runs):
            result = await self._measured(trace, run, part(self.fit + run))
            self._save(result, f"measured-{run + 1}")
            measured.append(result)
        return Report("server", rows(found, measured), constants, GOALS)

    async def _fitted(self, setup: Setup, tell: Tell) -> tuple[Setup, str]:
        probe = Probe(self.server, self.load, setup.limits.tokens)
        try:
            timed = await probe.timed(tell)
        except (OSError, HttpError, TimeoutError) as error:
            raise InputError(f"{self.server.url} failed a batch that fits the engine's constants: "
                             f"{error or 'timeout'}") from None  # fmt: skip
        own = setup.cost.host
        left = np.abs(errors(fitted(setup.cost, timed, own_kernels=True), timed))
        spread = replace(own, spread=0.0, kernel_spread=float(np.percentile(left, 90)))
        cost = fitted(type(setup.cost)(setup.cost.geometry, setup.cost.device, spread), timed, own_kernels=True)
        said = f"batches that fit the engine's constants: {words(cost)}; left {100 * float(np.median(left)):.1f} %"
        return replace(setup, cost=cost), said

    async def _measured(self, trace: Trace, run: int, progress: Tell) -> Result:
        work = Measurement(self.server, replace(self.load, seed=run + 1), trace, progress)
        await work.run(asyncio.Event())
        about: dict[str, Any] = {
            "scenario": self.scenario.model_dump(mode="json"), "counters": {},
            "provenance": {"device": self.scenario.device, "tier": "measured", "run": f"a server at {self.server.url}",
                           "engine": self.scenario.engine, "model": self.load.model, "seed": run + 1,
                           "version": __version__},
        }  # fmt: skip
        result = work.result(about)
        failed = len(trace) - int(result.summary["requests"]["completed"])
        if failed:
            raise InputError(f"{failed} of {len(trace)} requests failed: {', '.join(work.reasons)}")
        return result

    def _save(self, result: Result, name: str) -> None:
        if self.out is not None:
            result.save(self.out / name)


def rows(predicted: Sequence[Result], measured: Sequence[Result]) -> list[Row]:
    """Each metric of the prediction (and its fast and slow end) against the median of the runs."""
    summaries = [result.summary for result in predicted]
    found = []
    for metric in ("total_s", *METRICS):
        values = [_value(summary, metric) for summary in summaries]
        truths = [_value(result.summary, metric) for result in measured]
        true = float(np.median(truths))
        ends = (min(values) / (1 + _REST), max(values) * (1 + _REST)) if metric == "total_s" else tuple(
            interval(summaries, (metric,))[metric])  # fmt: skip
        apart = (max(truths) - min(truths)) / true
        found.append(Row(metric, "server", metric, values[0], true, ends if len(values) > 1 else None,
                         f"{len(truths)} runs, {100 * apart:.1f} % apart"))
    return found


def _value(summary: dict[str, Any], metric: str) -> float:
    value = summary["duration_s"] if metric == "total_s" else number(summary, metric)
    if value is None:
        raise InputError(f"{metric} is undefined: the trace has no request with more than one token")
    return float(value)
