"""`run`: a Scenario in, a Result out. `kvsim.setup` resolves its names; `simulate` replays a trace through that Setup,
on one replica or several, and touches no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kvsim import __version__
from kvsim.cache.build import build_cache
from kvsim.cache.radix_pool import RadixPool
from kvsim.cache.spec import CacheSpec
from kvsim.cost import CostModel, StepShape
from kvsim.engine.decode_set import NEVER
from kvsim.engine.replay import Stop, drive, replay
from kvsim.engine.sglang_replica import SglangReplica
from kvsim.fleet import is_cluster, mixture, run_fleet, wanted
from kvsim.interval import ends, interval
from kvsim.record import Recorder
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.sched.sglang import Limits as SglangLimits
from kvsim.setup import Setup, prepare
from kvsim.trace import Trace, load, readable, transform
from kvsim.trace.chain import Run, runs

Progress = Callable[[float, float], None]
"""told (done, total)"""


def trace_of(scenario: Scenario) -> Trace:
    """The scenario's trace, cut and scaled as it says."""
    trace = load(scenario.trace, format=scenario.trace_format, arrivals=scenario.arrivals, seed=scenario.seed)
    if scenario.start or scenario.duration:
        end = None if scenario.duration_ns is None else scenario.start_ns + scenario.duration_ns
        trace = transform.slice_time(trace, scenario.start_ns, end)
    if scenario.limit:
        trace = transform.limit(trace, scenario.limit)
    if scenario.rate:
        trace = transform.set_rate(trace, scenario.rate)
    if scenario.rate_scale != 1:
        trace = transform.scale_rate(trace, scenario.rate_scale)
    if scenario.scale_lengths != 1:
        trace = transform.scale_lengths(trace, scenario.scale_lengths)
    return transform.sample(trace, scenario.samples)


def check(scenario: Scenario, *, loaded: bool = False) -> Setup:
    """Refuse at once, before a trace is read (unless it is `loaded`), what a run of `scenario` would refuse: names, and
    what does not go together. Raises InputError."""
    setup = prepare(scenario)
    wanted(setup)
    for device, _ in mixture(scenario):
        if device != scenario.device:
            prepare(scenario.replace(device=device))
    if not loaded:
        readable(scenario.trace, format=scenario.trace_format, arrivals=scenario.arrivals)
    return setup


def run(scenario: Scenario, progress: Progress | None = None, trace: Trace | None = None) -> Result:
    """Simulate `scenario`, with its interval where it asks for one. `trace`: loaded already (`trace_of`)."""
    setup = check(scenario, loaded=trace is not None)
    trace = trace_of(scenario) if trace is None else trace
    return results(trace, setup, progress)[0]


def results(trace: Trace, setup: Setup, progress: Progress | None = None) -> list[Result]:
    """The Result of a prepared scenario; where it asks for an interval, the runs at its fast and slow end behind it."""
    parts = 3 if setup.scenario.interval else 1

    def part(index: int) -> Progress | None:
        return None if progress is None else lambda done, total: progress(index * total + done, parts * total)

    recorder, counters = simulate(trace, setup, setup.cost, part(0))
    found = [_result(trace, setup, recorder, counters)]
    if setup.scenario.interval:
        for index, (cost, memory) in enumerate(ends(setup.cost, setup.memory, mean_shape(recorder, setup)), 1):
            side = replace(setup, memory=memory)
            found.append(_result(trace, side, *simulate(trace, side, cost, part(index))))
        found[0].run["interval"] = interval([result.summary for result in found])
    return found


def simulate(
    trace: Trace, setup: Setup, cost: CostModel, progress: Progress | None = None, stop: Stop | None = None
) -> tuple[Recorder, dict[str, int]]:
    """One replica of `setup` under `trace`: what was recorded, and the cache's counters. Pure but for `progress`.

    `stop` may end the run early (engine/replay.py)."""
    total = max(1, len(trace))
    how: dict[str, Any] = {
        "max_model_len": setup.memory.max_model_len, "chains": chains(trace, setup.spec),
        "progress": None if progress is None else lambda ended: progress(ended, total), "stop": stop,
        "forks": setup.forks,
    }
    if is_cluster(setup.scenario):
        return run_fleet(trace, _parts(setup, cost), how)
    if setup.spec.prefix == "radix":
        return _radix(trace, setup, cost, how)
    kv = build_cache(setup.spec, setup.pool(), trace)
    recorder = replay(
        trace, scheduler=setup.scheduler(), limits=setup.limits, kv=kv, cost=cost, windows=setup.windows,
        tier=setup.spec.tier, asynchronous=setup.engine.host.asynchronous,
        max_stride=setup.scenario.max_stride or NEVER, **how,
    )
    swapped = getattr(kv, "out_bytes", 0) + getattr(kv, "in_bytes", 0) + getattr(kv, "copied_in_bytes", 0)
    return recorder, {
        "prefill": recorder.prefill_tokens, "decode": recorder.decode_tokens,
        "evicted_blocks": getattr(kv, "evicted_blocks", 0), "swapped_bytes": swapped,
    }


def _parts(setup: Setup, cost: CostModel) -> list[tuple[Setup, CostModel, int]]:
    """(setup, its cost, replicas) of each kind of device: all as far off as `cost` is."""
    found = []
    for device, count in mixture(setup.scenario):
        if device == setup.scenario.device:
            found.append((setup, cost, count))
        else:
            other = prepare(setup.scenario.replace(device=device))
            found.append((other, other.cost.scaled(cost.factor), count))
    return found


def _radix(trace: Trace, setup: Setup, cost: CostModel, how: dict[str, Any]) -> tuple[Recorder, dict[str, int]]:
    """The radix tree comes with SGLang's scheduler: one decides for the other."""
    page, memory = setup.spec.block_size, setup.memory
    token_bytes = memory.group_token_bytes * len(memory.windows)
    pool = RadixPool(memory.pool // token_bytes, page, setup.spec.eviction, unit=page)
    limits = SglangLimits(setup.limits.sequences, setup.limits.tokens, max_prefill_tokens=16384)

    def replica(env: Any, source: Any, recorder: Recorder) -> SglangReplica:
        return SglangReplica(
            env, pool=pool, limits=limits, token_bytes=token_bytes, cost=cost, windows=setup.windows, source=source,
            recorder=recorder, max_stride=setup.scenario.max_stride or NEVER,
        )

    recorder = drive(trace, replica, **how)
    return recorder, {
        "prefill": recorder.prefill_tokens, "decode": recorder.decode_tokens,
        "evicted_blocks": pool.evicted // page, "swapped_bytes": 0,
    }


def chains(trace: Trace, spec: CacheSpec) -> Callable[[int], list[Run]] | None:
    """What a prefix cache of this policy knows of a row's content; None where nothing is shared."""
    if spec.prefix == "off" or not len(trace.block_ids):
        return None
    return lambda row: runs(trace, row, spec.block_size)


def mean_shape(recorder: Recorder, setup: Setup) -> StepShape:
    """A step as it was on average, to quote an error on: decodes, what they attend, and a chunk in its share."""
    steps = recorder.step_columns()
    count = steps["steps"]
    if not count.sum():
        return setup.cost.typical()
    decode = round(float((steps["decode"] * count).sum() / count.sum()))
    attended = round(float((steps["attended"] * count).sum() / count.sum()))
    chunk = round(float(steps["prefill_tokens"].sum() / count.sum()))
    longest = max(1, attended // max(1, decode))
    groups = setup.windows
    each = tuple(min(longest, window) if window else longest for window in groups)
    return StepShape(
        decode=decode, attended=tuple(length * decode for length in each), longest=each, growing=(0,) * len(groups),
        longest_grows=(False,) * len(groups), chunks=((chunk, 0),) if chunk else (),
        sampled=decode or 1,
    )


def _priorities(trace: Trace, setup: Setup) -> list[str]:
    if setup.limits.priority or not trace.priority.any():
        return []
    known = "scheduling_policy" in setup.engine.options
    return ["the trace's priorities were not used" + (": --scheduling-policy priority does" if known else "")]


def _result(trace: Trace, setup: Setup, recorder: Recorder, counters: dict[str, int]) -> Result:
    scenario = setup.scenario
    requests = recorder.request_columns()
    tier = setup.cost.tier(mean_shape(recorder, setup)) if recorder.engine_steps else setup.device.tier
    run: dict[str, Any] = {
        "scenario": scenario.model_dump(mode="json"),
        "provenance": {
            "device": setup.device.id, "tier": tier,
            "engine": f"{setup.engine.id}@{setup.engine.version}", "model": setup.model.name, "seed": scenario.seed,
            "version": __version__,
        },
        "policy": setup.spec.facts(),
        "memory_plan": setup.memory.to_json(),
        "counters": counters,
        "notes": [*trace.notes, *_priorities(trace, setup)],
        "dropped": dict(trace.dropped),
    }
    columns = {
        **requests, "id": np.arange(len(trace)), "session": trace.session, "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
    }
    return Result.from_columns(
        run, columns, recorder.timeline_columns(), recorder.step_columns(), recorder.itl(), recorder.reasons,
        recorder.map_columns(),
    )
