"""What a worker process computes for a scenario, each into a place of its own: whole or not at all.

`run`: a Result folder. `plan` and `curve`: the largest rate that one replica holds, and how it behaves at rates around
it, both under steady traffic as `kvsim plan` defines it; a JSON file each.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvsim.plan import Objective, Objectives, evaluate, plan
from kvsim.plan.people import excerpt
from kvsim.plan.search import Load
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import Progress, mean_shape, results, trace_of
from kvsim_app.overheard import Overheard

AROUND = (-48, -28, -14, -6, 0, 6, 14, 24)
"""steps of the planner's grid from its first guess, which is two thirds of the most that a replica gets done: rates
from a seventh of the guess to two and a half times it"""
STATISTICS = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p99"), ("tpot", "p50"), ("tpot", "p99"))


def run(scenario: Scenario, place: Path, progress: Progress | None = None) -> None:
    """Simulate a scenario into a Result folder, and what is overheard on the way into a file beside it, which is
    written first: where there is a Result it is there too."""
    heard, setup = Overheard(), prepare(scenario)
    result = results(trace_of(scenario), heard.of(setup), progress)[0]
    heard.save(place, result)
    result.save(place)


def find_rate(scenario: Scenario, place: Path, progress: Progress | None = None, *, slo: str) -> None:
    """What `kvsim plan` finds for the scenario's device, GPUs and policy under `slo`: its Candidate (without the curve
    of the search), output tokens of a request, and notes."""
    trace, objectives = trace_of(scenario), Objectives.parse(slo)
    answer = plan(
        scenario, objectives, devices=[scenario.device], policies=[str(scenario.policy)], tps=[scenario.tp],
        progress=progress, trace=trace,
    )  # fmt: skip
    (found,) = answer.candidates
    tokens = float(excerpt(trace, answer.requests).output_tokens.mean())
    _write(place, {"candidate": asdict(found) | {"curve": ()}, "tokens": tokens, "notes": answer.notes})


def curve(scenario: Scenario, place: Path, progress: Progress | None = None, *, slo: str) -> None:
    """Rates around the planner's first guess, every run to its end: a list of objects with `rate`, STATISTICS by name
    in seconds, `goodput` (share of requests within `slo`'s limits), `output_rate` in tokens/s, `per_user` (1 ÷ median
    TPOT), whether the replica keeps up with the rate (`steady`), and the cost model's `tier` there."""
    asked = Objectives.parse(slo)
    each = {objective.metric: objective.limit_s for objective in asked.latency}
    never = tuple(Objective(metric, statistic, math.inf) for metric, statistic in STATISTICS)
    objectives = Objectives(never, each, goodput=0.0, refused=1.0)
    setup = prepare(scenario)
    load = Load.of(excerpt(trace_of(scenario), asked.requests), setup)
    points = []
    for number, step in enumerate(AROUND):
        if progress is not None:
            progress(number, len(AROUND))
        tried = evaluate(load.at(load.guess + step), setup, setup.cost, objectives, load.guess + step)
        point = tried.point
        points.append(
            point.values
            | {"rate": point.rate, "output_rate": point.output_tokens_per_s, "per_user": point.user_tokens_per_s}
            | {"steady": "growth" not in point.missed, "tier": setup.cost.tier(mean_shape(tried.record, setup))}
        )
    _write(place, points)


def _write(place: Path, document: Any) -> None:
    new = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    place.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(json.dumps(document), encoding="utf-8")
    new.replace(place)


TASKS: dict[str, Callable[..., None]] = {"run": run, "plan": find_rate, "curve": curve}
"""name → what computes it from (scenario, place, progress, **options)"""
