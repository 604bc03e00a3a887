"""`kvsim validate step --device` and `kvsim validate serving --engine reference`: the reference engine as the truth.

The prediction comes from a device profile, whose grid the cases lie off, and from the engine's constants, which are
fitted here on other steps (`FITTED`) than those that count (`TRIED`): where the host is the device, what Python and
cold caches add between operators is as much the machine's own as its bandwidth is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvsim.result import Result
from kvsim.sched.base import Plan
from kvsim.trace import Trace
from kvsim.trace.types import make_trace
from kvsim.units import NS_PER_S
from kvsim.validate.report import Goal, Report, Row
from kvsim.validate.truth import Asked
from kvsim_calibration.engine.constants import Timed, centred
from kvsim_calibration.engine.ground import Ground, Tell
from kvsim_calibration.engine.setup import serve
from kvsim_calibration.engine.steps import Step

STEP_GOALS = (Goal("", "median_abs", 0.05),)
_DECODES = [[Step((context,) * n) for context in (100, 400, 1500, 4000)] for n in (1, 3, 6, 12, 16)]
FITTED = (
    *(row[at] for i, row in enumerate(_DECODES) for at in range(i % 2, 4, 2)),
    *(Step((), (chunk,)) for chunk in ((24, 0), (300, 0), (100, 600), (400, 3000))), Step((500,) * 8, ((150, 0),)),
)
TRIED = (
    *(row[at] for i, row in enumerate(_DECODES) for at in range(1 - i % 2, 4, 2)),
    Step((200, 300, 500, 3000)), Step((150,) * 9 + (2500,) * 3),
    *(Step((), (chunk,)) for chunk in ((100, 0), (500, 0), (300, 600), (100, 3000))),
    Step((700,) * 6, ((200, 0),)), Step((300,) * 12, ((100, 1000),)),
)  # fmt: skip
FIT = "steps that fit the engine's constants: "
METRICS = {"ttft": ("latency_s", "mean"), "tpot": ("latency_s", "mean"), "output_tokens_per_s": ("throughput", "")}
SERVING_GOALS = tuple(Goal("", "median_abs", 0.08, metric) for metric in METRICS)
LOAD = 0.5
"""share of the predicted throughput at which requests come"""
PIECES = 5
"""of each kind"""
REQUESTS = (6, 100)
"""of a piece, at least and at most"""


def step(asked: Asked, progress: Tell) -> Report:
    """Every case is timed in rounds, as many as the time allows."""
    ground = Ground.of(asked)
    times = ground.times((*FITTED, *TRIED), asked.seconds, progress)
    known = ground.fitted(Timed((case,), ns) for case, ns in times.items() if case in FITTED)
    rows = [known.row(case, ns, ground) for case, ns in times.items() if case in TRIED]
    left = len(FITTED) + len(TRIED) - len(times)
    skipped = {FIT + known.constants(): len(times) - len(rows)}
    return Report("step", rows, skipped | ({"needs more than half of the free memory": left} if left else {}),
                  STEP_GOALS)  # fmt: skip


def serving(asked: Asked, progress: Tell) -> Report:
    """Poisson requests at half of the predicted throughput, for about the time asked for, served in pieces: every other
    one fits the engine's constants, the rest are predicted.

    A machine that others use too changes its speed within a minute, so that the pieces that fit and those that count
    lie between each other: both sides of the comparison meet the same machine. Among the constants is a factor of the
    kernels, whose curves are of the machine at its best."""
    ground = Ground.of(asked)
    options = ground.options(16_384, "paged-prefix")
    burst = traffic(64, rate=1e6)
    rate = LOAD * len(burst) / ground.predict(options, burst).summary["duration_s"]
    count = min(max(REQUESTS[0], round(asked.seconds * rate / (2 * PIECES))), REQUESTS[1])
    timed: list[Timed] = []
    tried, measured = [], []
    for at in range(2 * PIECES):
        piece, steps = traffic(count, rate, seed=at + 1), Steps()
        result = serve(options, piece, ground.device.id,
                       lambda ended, at=at: progress(at * count + ended, 2 * PIECES * count), steps)  # type: ignore[misc]
        if at % 2 == 0:
            timed += steps.timed(result)
        else:
            tried.append(piece)
            measured.append(result)
    known = ground.fitted(timed, own_kernels=True)
    known = replace(known, cost=centred(known.cost, timed))
    predicted = [known.predict(options, piece) for piece in tried]
    if asked.out is not None:
        for at, (ours, theirs) in enumerate(zip(predicted, measured, strict=True)):
            ours.save(asked.out / f"predicted-{at + 1}")
            theirs.save(asked.out / f"measured-{at + 1}")
    note = f"{PIECES} × {count} requests, {rate:.2g}/s"
    rows = []
    for metric, (group, which) in METRICS.items():
        means = [float(np.mean([_part(each.summary, group, metric, which) for each in results]))
                 for results in (predicted, measured)]  # fmt: skip
        rows.append(Row(f"{metric} {which}".strip(), "reference", metric, *means, note=note))
    said = f"{len(timed):,} {FIT}{known.constants()}"
    return Report("serving", rows, {said: PIECES}, SERVING_GOALS)


class Steps:
    """Listens to the engine's plans: which batch each step was of."""

    def __init__(self) -> None:
        self.seen: list[Step] = []

    def __call__(self, plan: Plan) -> None:
        decoding = [seq.generated > 0 and tokens == 1 for seq, tokens, _ in plan.chunks]
        both = list(zip(plan.chunks, decoding, strict=True))
        if both:
            self.seen.append(Step(tuple(context for (_, _, context), decodes in both if decodes),
                                  tuple((tokens, context) for (_, tokens, context), decodes in both if not decodes)))

    def timed(self, result: Result) -> list[Timed]:
        """With the ns that each took."""
        took = (result.steps["end_ns"] - result.steps["start_ns"]).to_list()
        return [Timed((step,), float(ns)) for step, ns in zip(self.seen, took, strict=True)]


def _part(summary: dict[str, Any], group: str, metric: str, which: str) -> float:
    found = summary[group][metric]
    return float(found[which] if which else found)


def traffic(count: int, rate: float, seed: int = 1) -> Trace:
    """`count` Poisson arrivals, `rate` a second: prompts of some 40 to 700 tokens, answers of 8 to 64; half of the
    requests begin with one of three system prompts of 96 tokens."""
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(5.2, 0.7, count), 40, 700).astype(np.int64)
    shared = rng.random(count) < 0.5
    prompts[shared] += 96
    return make_trace(
        "validate serving", "made", (rng.exponential(1 / rate, count).cumsum() * NS_PER_S).astype(np.int64), prompts,
        rng.integers(8, 65, count), block_ids=rng.integers(3, size=int(shared.sum())),
        block_start=np.concatenate([[0], np.cumsum(shared)]), block_size=96, block_rule="floor",
    )  # fmt: skip
