"""Run the scenarios that are missing, wherever the executor puts them, and keep each result as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from kvsim.errors import InputError
from kvsim.scenario import Scenario, make
from kvsim.simulate import Progress, run, trace_of
from kvsim.sweep.store import Store
from kvsim.trace import Trace
from kvsim.workers import Executor, Failure, Local

TRAFFIC = (
    "trace", "trace_format", "arrivals", "rate", "rate_scale", "scale_lengths", "start", "duration", "limit", "samples",
    "seed",
)
"""fields that make the trace"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sweep ended."""

    scenarios: int
    ran: int
    """in this call; the others were there already"""
    failed: dict[str, str]
    """content hash → why"""


def sweep(
    scenarios: Sequence[Scenario],
    store: Store,
    *,
    resume: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run `scenarios` and keep every summary in `store`; with `resume` only those that are not done there.

    A scenario that is wrong, or whose worker dies three times, is kept as failed and stops no other. Raises InputError
    where the store has results and `resume` is not set.
    """
    if store.keys() and not resume:
        raise InputError(f"{store.folder} holds results: --resume runs what is missing, --out names another folder")
    done = store.keys("done")
    missing = [scenario for scenario in scenarios if scenario.key not in done]
    failed: dict[str, str] = {}
    if progress is not None and missing:
        progress(0, len(missing))
    for finished, (number, answer) in enumerate((executor or Local()).run(_summary, None, missing), 1):
        scenario = missing[number]
        if isinstance(answer, Failure):
            failed[scenario.key] = answer.message.removeprefix("InputError: ")
            store.put(scenario, None, failed[scenario.key])
        else:
            store.put(scenario, answer)
        if progress is not None:
            progress(finished, len(missing))
    return Outcome(len(scenarios), len(missing), failed)


def _summary(shared: None, scenario: Scenario) -> dict[str, Any]:
    """What one worker does with one scenario."""
    traffic = make({"model": "", "device": "", **{name: getattr(scenario, name) for name in TRAFFIC}})
    return run(scenario, trace=_trace(traffic)).summary


@lru_cache(maxsize=4)
def _trace(traffic: Scenario) -> Trace:
    """Neighbours in a grid mostly share their traffic: read it once a worker."""
    return trace_of(traffic)
