"""`kvsim validate step --device` and `kvsim validate serving --engine reference`: the reference engine as the truth.

The prediction comes from a device profile, whose grid the cases lie off, and from the engine's constants, which are
fitted here on other steps (`FITTED`) than those that count (`TRIED`): where the host is the device, what Python and
cold caches add between operators is as much the machine's own as its bandwidth is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvsim.cache.build import Pool, build_cache
from kvsim.cost import CostModel, HostOverhead
from kvsim.device import DeviceProfile, load_device
from kvsim.engine.replay import replay
from kvsim.engine_profile import load_engine
from kvsim.model import ModelSpec, load_model
from kvsim.result import Result
from kvsim.sched import SCHEDULERS
from kvsim.trace import Trace
from kvsim.trace.chain import runs
from kvsim.trace.types import make_trace
from kvsim.units import NS_PER_S
from kvsim.validate.report import Goal, Report, Row
from kvsim.validate.truth import Asked
from kvsim_calibration.backends.clock import of_visits, undisturbed
from kvsim_calibration.engine.constants import Timed, fitted, words
from kvsim_calibration.engine.model import Dims
from kvsim_calibration.engine.setup import Options, about, build, free_bytes, recorded, serve
from kvsim_calibration.engine.steps import Step, fill, time_step

Tell = Callable[[float, float], None]

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
TURNS = {"decode": 3, "prefill": 1, "mixed": 1}
"""timed turns of a case in a round"""

METRICS = {"ttft": "mean", "tpot": "mean"}
SERVING_GOALS = tuple(Goal("", "median_abs", 0.08, metric) for metric in ("ttft", "tpot", "output_tokens_per_s"))
LOAD = 0.6
"""share of the predicted throughput at which requests come"""
REQUESTS = (12, 400)
"""at least and at most"""


def step(asked: Asked, progress: Tell) -> Report:
    """Every case is timed in rounds, as many as the time allows."""
    ground = Ground.of(asked)
    times = ground.times((*FITTED, *TRIED), asked.seconds, progress)
    known = ground.fitted({case: ns for case, ns in times.items() if case in FITTED})
    rows = [known.row(case, ns, ground) for case, ns in times.items() if case in TRIED]
    left = len(FITTED) + len(TRIED) - len(times)
    skipped = {FIT + known.constants(): len(times) - len(rows)}
    return Report("step", rows, skipped | ({"needs more than half of the free memory": left} if left else {}),
                  STEP_GOALS)  # fmt: skip


def serving(asked: Asked, progress: Tell) -> Report:
    """Poisson requests at 60 % of the predicted throughput, for about the time asked for: predicted, then served. A
    third of the time goes to the engine's constants."""
    ground = Ground.of(asked)
    ground = ground.fitted(ground.times(FITTED, asked.seconds / 3, progress))
    options = ground.options(16_384, "paged-prefix")
    burst = traffic(64, rate=1e6)
    rate = LOAD * len(burst) / ground.predict(options, burst).summary["duration_s"]
    trace = traffic(min(max(REQUESTS[0], round(asked.seconds * rate)), REQUESTS[1]), rate)
    results = {"predicted": ground.predict(options, trace)}
    results["measured"] = serve(options, trace, ground.device.id, lambda ended: progress(ended, len(trace)))
    for name, result in results.items():
        if asked.out is not None:
            result.save(asked.out / name)
    predicted, measured = (result.summary for result in results.values())
    note = f"{len(trace)} requests, {rate:.2g}/s"
    rows = [Row(f"{name} {which}", "reference", name, predicted["latency_s"][name][which],
                measured["latency_s"][name][which], note=note) for name, which in METRICS.items()]  # fmt: skip
    name = "output_tokens_per_s"
    rows.append(Row(name, "reference", name, predicted["throughput"][name], measured["throughput"][name], note=note))
    return Report("serving", rows, {FIT + ground.constants(): len(FITTED)}, SERVING_GOALS)


@dataclass(frozen=True)
class Ground:
    """What both sides of a comparison stand on: the model, the device's profile, the cost model made of them."""

    asked: Asked
    spec: ModelSpec
    device: DeviceProfile
    cost: CostModel

    @classmethod
    def of(cls, asked: Asked) -> Ground:
        """Raises InputError for a model or a device that is not known, or cannot be run here."""
        from kvsim_calibration.backends.command import device_of, pinned, same_kind

        device_of(asked.device)
        pinned(asked.threads)
        spec = load_model(asked.model)
        Dims.of(spec)  # before minutes are spent on a model that the engine cannot run
        profile = load_device(asked.profile) if asked.profile else calibrated(asked)
        same_kind(profile, asked.device)
        dtype, engine = _dtype(asked), load_engine("reference")
        cost = CostModel.of(spec, profile, HostOverhead.of(engine.host), weights_dtype=dtype, kv_dtype=dtype,
                            block_size=engine.limits.block_size)  # fmt: skip
        return cls(asked, spec, profile, cost)

    def options(self, kv_tokens: int, policy: str = "paged") -> Options:
        """The engine, with room for so many tokens."""
        return Options(self.asked.model, policy, kv_tokens, dtype=_dtype(self.asked), device=self.asked.device)

    @property
    def token_bytes(self) -> int:
        """Of the cache, over all layers."""
        return self.options(0).token_bytes(self.spec)

    def times(self, steps: Sequence[Step], seconds: float, progress: Tell) -> dict[Step, float]:
        """ns of each step that half of the free memory has room for: a round is a visit, as in a calibration."""
        room = free_bytes(self.asked.device) // 2 // self.token_bytes
        shared = self.asked.device == "cpu"
        found: dict[Step, list[float]] = {case: [] for case in steps if case.tokens <= room}
        engine = build(self.options(max(case.tokens for case in found)))
        fill(engine)
        begin = time.monotonic()
        while not all(found.values()) or time.monotonic() - begin < seconds:
            for case, visits in found.items():
                visits.append(undisturbed(time_step(engine, case, TURNS[case.kind]), shared))
                progress(time.monotonic() - begin, seconds)
        return {case: of_visits(visits, shared) for case, visits in found.items()}

    def fitted(self, times: dict[Step, float]) -> Ground:
        """The same with the constants of the engine that explain these steps best."""
        return replace(self, cost=fitted(self.cost, [Timed((case,), ns) for case, ns in times.items()]))

    def constants(self) -> str:
        """Of the engine, in words."""
        return words(self.cost)

    def row(self, case: Step, ns: float, before: Ground) -> Row:
        """A timed step beside its prediction, and what that was `before` the fit."""
        shape = case.shape()
        value, band = self.cost.step(shape) / NS_PER_S, self.cost.error_band(shape)
        note = f"{100 * (before.cost.step(shape) / ns - 1):+.0f} % before the fit"
        return Row(case.name, case.kind, "seconds", value, ns / NS_PER_S, (value * band.low, value * band.high), note)

    def predict(self, options: Options, trace: Trace) -> Result:
        """A simulation with the engine's memory, limits and rules."""
        policy, limits = options.spec, options.limits
        pool = Pool(options.kv_tokens * self.token_bytes, self.token_bytes, (0,), options.max_model_len, limits.tokens)
        kv = build_cache(policy, pool, trace)
        recorder = replay(
            trace, scheduler=SCHEDULERS.get("chunked")(), limits=limits, kv=kv, cost=self.cost,
            max_model_len=options.max_model_len, chains=lambda row: runs(trace, row, policy.block_size),
        )  # fmt: skip
        run = about(options, trace, self.device.id, self.device.tier)
        return recorded(run, trace, recorder, getattr(kv, "evicted_blocks", 0))


def _dtype(asked: Asked) -> str:
    return "bf16" if asked.device.startswith("cuda") else "fp32"  # what the device computes in at full speed


def calibrated(asked: Asked) -> DeviceProfile:
    """A profile of the kernels of this model, measured now."""
    from kvsim_calibration.backends.command import Asked as Calibration
    from kvsim_calibration.backends.command import calibrate

    with TemporaryDirectory() as folder:
        wanted = Calibration((asked.model,), Path(folder) / "here.json", asked.seconds, asked.device, "torch",
                             threads=asked.threads, dtypes=(_dtype(asked),))  # fmt: skip
        return calibrate(wanted, "kvsim validate")[0]


def traffic(count: int, rate: float) -> Trace:
    """`count` Poisson arrivals, `rate` a second: prompts of some 40 to 700 tokens, answers of 8 to 64; half of the
    requests begin with one of three system prompts of 96 tokens."""
    rng = np.random.default_rng(1)
    prompts = np.clip(rng.lognormal(5.2, 0.7, count), 40, 700).astype(np.int64)
    shared = rng.random(count) < 0.5
    prompts[shared] += 96
    return make_trace(
        "validate serving", "made", (rng.exponential(1 / rate, count).cumsum() * NS_PER_S).astype(np.int64), prompts,
        rng.integers(8, 65, count), block_ids=rng.integers(3, size=int(shared.sum())),
        block_start=np.concatenate([[0], np.cumsum(shared)]), block_size=96, block_rule="floor",
    )  # fmt: skip
