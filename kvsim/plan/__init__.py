"""Capacity planning: which devices, under which policy, how many, for these objectives and this traffic.

    from kvsim.plan import Objectives, plan

    answer = plan(scenario, Objectives.parse("ttft_p99=2s,tpot_p99=50ms"), devices=["h100-sxm", "l40s"])
    answer.answer.replicas, answer.answer.limit, answer.pareto()

docs/plan.md explains the method.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from kvsim.engine_profile import load_engine
from kvsim.errors import InputError
from kvsim.interval import ends
from kvsim.plan.alone import ALONE
from kvsim.plan.answer import TOO_SHORT, Answer, Candidate, ParetoPoint, around, choose
from kvsim.plan.limit import binding, facts, unreachable
from kvsim.plan.objectives import Objective, Objectives
from kvsim.plan.people import excerpt, others
from kvsim.plan.search import Load, Point, evaluate, largest, rate_at, rater
from kvsim.plan.traffic import Offer
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import Progress, mean_shape, trace_of
from kvsim.trace import Trace, readable, transform
from kvsim.workers import Executor, Failure, InProcess

__all__ = [
    "Answer", "Candidate", "Objective", "Objectives", "Offer", "ParetoPoint", "Point", "evaluate", "plan", "rate_at",
]  # fmt: skip

TPS = (1, 2, 4, 8)
USUAL = 20_000
"""requests of a trace that judge the close candidates, unless another number is asked for"""
OTHERS = 8
"""times that the answer's rate is found again for other people, for its interval"""
FAR = 8
"""steps that a search gallops at first where it has no better place to begin than a small run's"""
BEHIND = 0.25
"""a candidate that is dearer than the best by more than this share after a first search is not searched any further"""
WHOLE, SHORT, FIRST_OTHERS = 0, 1, 2
"""places in Shared.traces"""


@dataclass(frozen=True)
class Shared:
    """What every task needs."""

    traces: tuple[Trace, ...]
    """what is simulated: WHOLE, SHORT (of a first search; the same one where all are few), and other people's"""
    objectives: Objectives


@dataclass(frozen=True)
class Search:
    """Find a candidate's largest rate."""

    scenario: Scenario
    trace: int
    """place in Shared.traces"""
    begin: int | None = None
    """where on the grid to begin; None: where a small run says"""
    side: str = ""
    """low or high end of the cost model's and the memory plan's error; empty: neither"""


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
    `requests`: that judge the candidates about as good as the best, by default up to USUAL; the others are judged by
    as many as the percentiles need. `trace`: loaded already. Raises InputError where a name, a price or the trace is
    wrong.
    """
    prices = dict(prices or {})
    if strange := sorted(set(prices) - set(devices)):
        raise InputError(f"--price names {strange[0]!r}, which is not one of the devices {', '.join(devices)}")
    policies = policies or [load_engine(scenario.engine or "vllm-1").policy]
    found, scenarios, unfit = _candidates(scenario, devices, policies, tps)
    if trace is None:  # names that are wrong have ended here before it is read
        readable(scenario.trace, format=scenario.trace_format, arrivals=scenario.arrivals)
        trace = trace_of(scenario)
    target = transform.mean_rate(trace)
    if target is None:
        raise InputError(f"{trace.name}: all requests arrive at once, there is no rate to scale: set --arrivals")
    whole = excerpt(trace, requests or max(USUAL, objectives.requests))
    short = excerpt(trace, objectives.requests) if 2 * objectives.requests <= len(whole) else whole
    executor = executor or InProcess()
    other = _others(trace, len(short), scenario.seed) if scenario.interval else ()
    shared = Shared((whole, short, *other), objectives)
    done, total = 0, len(scenarios)

    def search(tasks: list[Search]) -> Iterator[tuple[int, Candidate | Failure]]:
        nonlocal done, total
        total = max(total, done + len(tasks))
        for number, answer in executor.run(_search, shared, tasks):
            done += 1
            if progress is not None:
                progress(done, total)
            yield number, answer

    def sized(number: int, answer: Candidate | Failure, part: Trace) -> Candidate:
        first = found[number]
        if isinstance(answer, Failure):
            return replace(first, rate_per_replica=None, replicas=None, reason=answer.message)
        priced = replace(answer, price_per_gpu_hour=prices.get(first.device), requests=len(part))
        if answer.limit == TOO_SHORT:
            every = len(part) == len(trace)
            return priced.without_rate("give a longer trace" if every else "ask for more (--requests)")
        return priced.sized(target, float(part.output_tokens.mean()))

    for number, answer in search([Search(one, SHORT) for one in scenarios]):
        found[number] = sized(number, answer, short)
    firsts = list(found)
    while len(short) < len(whole) and (close := _close(found, len(whole))):
        tasks = [Search(scenarios[number], WHOLE, _begin(found[number])) for number in close]
        for place, answer in search(tasks):
            number = close[place]
            found[number] = sized(number, answer, whole).with_curve(firsts[number].curve)
    candidates = [*found, *unfit]
    best, by = choose(candidates)
    if best is not None and scenario.interval:
        first = firsts[best]
        again = [Search(scenarios[best], SHORT, _begin(first), side) for side in ("low", "high")]
        again += [Search(scenarios[best], FIRST_OTHERS + number, _begin(first)) for number in range(len(other))]
        rates = {place: one.rate_per_replica or 0.0 for place, one in sorted(search(again), key=itemgetter(0))
                 if isinstance(one, Candidate) and one.reachable}
        sides = [rate for place, rate in rates.items() if again[place].side]
        spread = [rate for place, rate in rates.items() if not again[place].side]
        chosen, share = candidates[best], len(short) / len(whole)
        between = around(chosen.rate_per_replica or 0.0, first.rate_per_replica or 0.0, sides, spread, share)
        candidates[best] = chosen.with_rates(between, target, float(whole.output_tokens.mean()))
    notes = _notes(trace, len(whole), len(short), objectives)
    return Answer(tuple(candidates), best, by, target, len(whole), len(trace), objectives, notes)


def _others(trace: Trace, requests: int, seed: int) -> tuple[Trace, ...]:
    """Traces of other people; none that arrive all at once."""
    made = (others(trace, requests, np.random.default_rng((seed, number))) for number in range(OTHERS))
    return tuple(one for one in made if transform.mean_rate(one) is not None)


def _close(found: Sequence[Candidate], requests: int) -> list[int]:
    """Candidates about as good as the best that have not been judged by so many requests; none once the best has.
    Those that fewer could not load are as good as any."""
    if light := [i for i, c in enumerate(found) if c.limit == TOO_SHORT and c.requests != requests]:
        return light
    best, by = choose(found)
    if best is None or found[best].requests == requests:
        return []
    value = {i: _price(c, by) for i, c in enumerate(found) if c.reachable and c.requests != requests}
    return [i for i, one in value.items() if one <= (1 + BEHIND) * _price(found[best], by)]


def _price(candidate: Candidate, by: str) -> float:
    """What a request a second takes of one: money or GPUs, idle capacity left out."""
    unit = candidate.price_per_gpu_hour if by == "cost" else 1.0
    return (unit or 0.0) * candidate.tp / (candidate.rate_per_replica or math.inf)


def _begin(candidate: Candidate) -> int | None:
    """Where the largest rate was found, if it was."""
    if candidate.limit == TOO_SHORT:
        return None
    return max(p.index for p in candidate.curve if p.held and p.rate == candidate.rate_per_replica)


def _notes(trace: Trace, whole: int, short: int, objectives: Objectives) -> tuple[str, ...]:
    notes = list(trace.notes)
    if whole < objectives.requests:
        notes.append(f"{whole:,} requests are few for these percentiles, which want {objectives.requests:,}")
    if short < whole:
        notes.append(f"candidates over {BEHIND:.0%} behind the best were judged by {short:,} requests only")
    return tuple(notes)


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


def _search(shared: Shared, task: Search) -> Candidate:
    """One candidate's largest rate and what binds there."""
    scenario, objectives = task.scenario, shared.objectives
    setup = prepare(scenario)
    cost = setup.cost
    load = Load.of(shared.traces[task.trace], setup)
    tried: dict[int, Point] = {}
    rate = rater(load, setup, cost, objectives, tried)
    begin = load.guess if task.begin is None else task.begin
    if task.side:
        fast, slow = ends(cost, setup.memory, mean_shape(rate(begin).record, setup))
        cost, memory = fast if task.side == "low" else slow
        setup, tried = replace(setup, memory=memory), {}
        rate = rater(load, setup, cost, objectives, tried)
    index = largest(rate, begin, FAR if task.begin is None else 1)
    curve = tuple(tried[i] for i in sorted(tried))
    one = Candidate(scenario.device, scenario.tp, scenario.policy or "", curve=curve,
                    power_watts=setup.device.facts.power_watts)
    if index is None:
        lowest = evaluate(load.at(curve[0].index), setup, cost, objectives, curve[0].index, patient=True)
        tier = cost.tier(mean_shape(lowest.record, setup))
        return replace(one, tier=tier, reason=unreachable(lowest, objectives, setup))
    held, failed = rate(index), rate(index + 1)
    if failed.point.held:
        limit, reason = TOO_SHORT, ""
    else:
        limit, reason = binding(failed.point.missed, facts(failed, setup))
    return replace(
        one, tier=cost.tier(mean_shape(held.record, setup)), rate_per_replica=held.point.rate,
        output_tokens_per_s=held.point.output_tokens_per_s, limit=limit, reason=reason,
    )

