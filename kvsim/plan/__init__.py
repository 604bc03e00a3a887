"""Capacity planning: which devices, under which policy, how many, for these objectives and this traffic.

    from kvsim.plan import Objectives, plan

    answer = plan(scenario, Objectives.parse("ttft_p99=2s,tpot_p99=50ms"), devices=["h100-sxm", "l40s"])
    answer.answer.replicas, answer.answer.limit, answer.pareto()

docs/plan.md explains the method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvsim.engine_profile import load_engine
from kvsim.errors import InputError
from kvsim.interval import ends
from kvsim.plan.alone import ALONE
from kvsim.plan.answer import Answer, Candidate, ParetoPoint, choose
from kvsim.plan.limit import binding, facts
from kvsim.plan.objectives import Objective, Objectives
from kvsim.plan.search import Point, evaluate, first_guess, largest, rate_at, rater
from kvsim.scenario import Scenario
from kvsim.setup import Setup, prepare
from kvsim.simulate import Progress, mean_shape, trace_of
from kvsim.trace import Trace, transform
from kvsim.workers import Executor, Failure, InProcess

__all__ = ["Answer", "Candidate", "Objective", "Objectives", "ParetoPoint", "Point", "evaluate", "plan", "rate_at"]

TPS = (1, 2, 4, 8)
WINDOWS = 3
"""stretches of the trace on which the answer's rate is found again, for its interval"""


@dataclass(frozen=True)
class Shared:
    """What every task needs."""

    trace: Trace
    """the requests that are simulated"""
    objectives: Objectives


@dataclass(frozen=True)
class Again:
    """Find a candidate's rate again, from `index` on, elsewhere or at another end of the cost model's error."""

    scenario: Scenario
    index: int
    side: str = ""
    """low or high end of the cost model's and the memory plan's error; empty: neither"""
    trace: Trace | None = None


def plan(
    scenario: Scenario,
    objectives: Objectives,
    *,
    devices: Sequence[str],
    policies: Sequence[str] = (),
    tps: Sequence[int] = (),
    prices: Mapping[str, float] | None = None,
    requests: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    trace: Trace | None = None,
) -> Answer:
    """The largest rate of every device × TP × policy under `objectives`, and the best of them for the trace's rate.

    `scenario` says the rest (model, trace, engine, limits); its `rate` and `rate_scale` set the rate to carry, its
    `device`, `policy`, `tp` and all of ALONE are not looked at. `tps`: by default the smallest that fits the model, and
    its double. `prices`: per GPU and hour, in any currency; there is no built-in list, for prices change by the week.
    `requests`: simulated in every run, by default as many as the percentiles need. `trace`: loaded already. Raises
    InputError where a name, a price or the trace is wrong.
    """
    prices = dict(prices or {})
    if strange := sorted(set(prices) - set(devices)):
        raise InputError(f"--price names {strange[0]!r}, which is not one of the devices {', '.join(devices)}")
    trace = trace_of(scenario) if trace is None else trace
    target = transform.mean_rate(trace)
    if target is None:
        raise InputError(f"{trace.name}: all requests arrive at once, there is no rate to scale: set --arrivals")
    wanted = min(len(trace), requests or objectives.requests)
    part = transform.limit(trace, wanted)
    policies = policies or [load_engine(scenario.engine or "vllm-1").policy]
    found, scenarios, unfit = _candidates(scenario, devices, policies, tps)
    executor = executor or InProcess()
    shared = Shared(part, objectives)
    tokens = float(part.output_tokens.mean())
    done = 0
    total = len(scenarios) + WINDOWS + 1

    def tell() -> None:
        if progress is not None:
            progress(done, total)

    for number, answer in executor.run(_search, shared, scenarios):
        done += 1
        tell()
        first = found[number]
        found[number] = replace(first, reason=answer.message) if isinstance(answer, Failure) else replace(
            answer, price_per_gpu_hour=prices.get(first.device)).sized(target, tokens)
    candidates = [*found, *unfit]
    best, by = choose(candidates)
    if best is not None and scenario.interval:
        chosen = candidates[best]
        assert chosen.rate_per_replica is not None
        rates = [chosen.rate_per_replica]
        for _, again in executor.run(_again, shared, _repeats(scenarios[best], chosen, trace, wanted)):
            done += 1
            tell()
            if isinstance(again, float):
                rates.append(again)
        candidates[best] = chosen.with_rates(rates, target, tokens)
    notes = _notes(trace, wanted, objectives)
    if best is not None and candidates[best].rate_per_replica is not None:
        notes += _unsteady(part, candidates[best].rate_per_replica or 0.0)
    return Answer(tuple(candidates), best, by, target, wanted, len(trace), objectives, notes)


def _notes(trace: Trace, wanted: int, objectives: Objectives) -> tuple[str, ...]:
    notes = list(trace.notes)
    if wanted < objectives.requests:
        notes.append(f"{wanted:,} requests are few for these percentiles, which want {objectives.requests:,}")
    return tuple(notes)


def _unsteady(trace: Trace, rate: float) -> tuple[str, ...]:
    """Conversations go on after the last one has begun. Where that takes longer than all the beginnings, a run of so
    few requests never sees as much traffic at once as a long one of the same rate."""
    begins = np.zeros(len(trace), dtype=np.int64)
    think = np.maximum(trace.after_parent_ns, 0)
    for row in np.flatnonzero(trace.parent >= 0).tolist():  # parents come first
        begins[row] = begins[trace.parent[row]] + think[row]
    late, span = float(np.quantile(begins, 0.9)) / 1e9 if len(begins) else 0.0, len(trace) / rate
    if late <= span / 2:
        return ()
    enough = 10 ** math.ceil(math.log10(4 * late * rate))
    return (
        f"conversations go on for {late:,.0f} s, but {len(trace):,} requests at {rate:.3g}/s all begin within "
        f"{span:,.0f} s: steady traffic meets more at once and holds less; about {enough:,} requests would tell",
    )


def _candidates(
    base: Scenario, devices: Sequence[str], policies: Sequence[str], tps: Sequence[int]
) -> tuple[list[Candidate], list[Scenario], list[Candidate]]:
    """(candidates to search, their scenarios, those that do not fit)."""
    found, scenarios, unfit = [], [], []
    for device in devices:
        for policy in policies:
            fitting = 0
            for tp in tps or TPS:
                one = base.replace(device=device, policy=policy, tp=tp, rate=None, rate_scale=1.0, **ALONE)
                try:
                    setup = prepare(one)
                except InputError as error:
                    if not _about_size(error):
                        raise
                    unfit.append(Candidate(device, tp, policy, reason=str(error)))
                    continue
                fitting += 1
                found.append(Candidate(device, tp, policy, power_watts=setup.device.facts.power_watts))
                scenarios.append(one)
                if not tps and fitting == 2:
                    break
            if fitting and not tps:
                unfit = [c for c in unfit if (c.device, c.policy) != (device, policy)]
    return found, scenarios, unfit


def _about_size(error: InputError) -> bool:
    """Whether the model does not fit, or cannot be split: then a candidate is out, and the question still stands."""
    return any(word in str(error) for word in ("fit", "split", "divide", "heads"))


def _search(shared: Shared, scenario: Scenario) -> Candidate:
    """One candidate's largest rate and what binds there."""
    setup = prepare(scenario)
    cost, objectives = setup.cost, shared.objectives
    tried: dict[int, Point] = {}
    rate = rater(shared.trace, setup, cost, objectives, tried)
    index = largest(rate, first_guess(shared.trace, setup, cost))
    curve = tuple(tried[i] for i in sorted(tried))
    one = Candidate(scenario.device, scenario.tp, scenario.policy or "", curve=curve,
                    power_watts=setup.device.facts.power_watts)
    if index is None:
        return replace(one, tier=cost.tier(cost.typical()), reason=_unreachable(curve[0], objectives))
    held, failed = rate(index), rate(index + 1)
    if failed.point.held:
        limit, reason = "not found", "so few requests are held at any rate: give a longer trace"
    else:
        limit, reason = binding(failed.point.missed, facts(failed, setup))
    return replace(
        one, tier=cost.tier(mean_shape(held.record, setup)), rate_per_replica=held.point.rate,
        output_tokens_per_s=held.point.output_tokens_per_s, limit=limit, reason=reason,
    )


def _unreachable(lowest: Point, objectives: Objectives) -> str:
    """Why even the lowest rate is not held."""
    limits = {o.name: f"{o.limit_s:g} s" for o in objectives.latency}
    limits |= {"goodput": f"{objectives.goodput:.1%}", "refused": f"{objectives.refused:.1%}"}
    words = []
    for name in lowest.missed:
        value = lowest.values.get(name)
        seen = "" if value is None else f" is {value:.1%}" if name in ("goodput", "refused") else f" is {value:.4g} s"
        words.append(f"{name}{seen} (limit {limits.get(name, 'none')})")
    return f"even at {lowest.rate:.3g} requests/s {', '.join(words)}"


def _repeats(scenario: Scenario, chosen: Candidate, trace: Trace, wanted: int) -> list[Again]:
    """Both ends of the cost model's error, and other stretches of the trace as far as it is long enough."""
    held = max((p for p in chosen.curve if p.held), key=lambda p: p.index)
    tasks = [Again(scenario, held.index, side) for side in ("low", "high")]
    for number in range(1, WINDOWS):
        rows = slice(number * wanted, (number + 1) * wanted)
        begins = trace.arrival_ns[rows]
        if len(begins) == wanted and begins[0] < begins[-1]:
            window = transform.slice_time(trace, int(begins[0]), int(begins[-1]) + 1)
            if transform.mean_rate(window) is not None:
                tasks.append(Again(scenario, held.index, trace=window))
    return tasks


def _again(shared: Shared, task: Again) -> float | None:
    setup: Setup = prepare(task.scenario)
    cost = setup.cost
    trace = task.trace if task.trace is not None else shared.trace
    rate = rater(trace, setup, cost, shared.objectives)
    if task.side:
        fast, slow = ends(cost, setup.memory, mean_shape(rate(task.index).record, setup))
        cost, memory = fast if task.side == "low" else slow
        setup = replace(setup, memory=memory)
        rate = rater(trace, setup, cost, shared.objectives)
    index = largest(rate, task.index, first_step=2)
    return None if index is None else rate_at(index)
