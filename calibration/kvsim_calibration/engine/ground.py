"""What a comparison with the reference engine stands on: the device's profile, the cost model made of it, the engine's
constants, and steps of it that are timed in rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

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
from kvsim.units import NS_PER_S
from kvsim.validate.report import Row
from kvsim.validate.truth import Asked
from kvsim_calibration.backends.clock import of_visits, undisturbed
from kvsim_calibration.engine.constants import Timed, fitted, words
from kvsim_calibration.engine.model import Dims
from kvsim_calibration.engine.setup import Options, about, build, free_bytes, recorded
from kvsim_calibration.engine.steps import Step, fill, time_step

Tell = Callable[[float, float], None]

TURNS = {"decode": 3, "prefill": 1, "mixed": 1}
"""timed turns of a case in a round"""


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

    def fitted(self, timed: Iterable[Timed], own_kernels: bool = False) -> Ground:
        """The same with the constants of the engine that explain these steps best."""
        return replace(self, cost=fitted(self.cost, timed, own_kernels))

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
