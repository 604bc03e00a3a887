"""Step rung: a whole prefill or decode step of a fixed batch, and static batches made of nothing else.

A static batch needs no scheduler: one prefill of all prompts, then as many decode steps as answers have tokens. So
`batch × output ÷ (prefill + all decode steps)` is the cost model's own. Groups: engine and phase.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.cost import CostModel, StepShape
from kvsim.device import load_device
from kvsim.engine_profile import EngineProfile
from kvsim.errors import InputError
from kvsim.interval import REST
from kvsim.model import load_model
from kvsim.setup import host_of, seen_by
from kvsim.units import NS_PER_S
from kvsim.validate.cases import Case, engine_of, read_all, rounding, split
from kvsim.validate.report import Goal, Report, Row

GOALS = (Goal("vllm-0 decode", "median_abs", 0.08), Goal("vllm-0 prefill", "median_abs", 0.08))
LONG = (256, 125_000)
"""contexts between which the slope of a decode step over its context is taken, where a case doesn't say"""


def validate_step(path: Path, engine_filter: str = "") -> Report:
    """Predict every case of a file that the step rung can check."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    unpredicted: Counter[str] = Counter()
    for case in read_all(path):
        if "step" not in case["checkable"] or not engine_of_case(case).startswith(engine_filter):
            continue
        if case.get("needs"):
            skipped[f"needs {case['needs']}"] += 1
            continue
        try:
            rows.append(predict(case))
        except InputError as error:
            unpredicted[str(error)] += 1
    return Report("step", rows, dict(skipped | unpredicted), GOALS, dict(unpredicted))


def engine_of_case(case: Case) -> str:
    return case.get("engine_id") or ""


def predict(case: Case) -> Row:
    """One row. Raises InputError for an unknown model, device or metric."""
    batch = Batch.of(case)
    seconds, shape, group = batch.answer(case["metric_id"])
    band = batch.cost.error_band(shape)
    rest = 1 + REST["itl"]
    low, high = sorted((seconds(band.low) / rest, seconds(band.high) * rest)) if not _is_rate(case) else sorted(
        (seconds(band.low) * rest, seconds(band.high) / rest))  # fmt: skip
    value = seconds(1.0)
    return Row(case["id"], f"{case.get('engine_id')} {group}", case["metric_id"], value, float(case["value_si"]),
               (low, high), batch.note, rounding(case), split(case))  # fmt: skip


def _is_rate(case: Case) -> bool:
    return str(case["metric_id"]).endswith("_per_s")


@dataclass(frozen=True)
class Batch:
    """`size` sequences of `prompt` tokens that answer with `output` tokens each, on one replica of `gpus` GPUs."""

    cost: CostModel
    engine: EngineProfile
    size: int
    prompt: int
    output: int
    share: float
    """of a rate that counts for one GPU (1: for all)"""
    other: dict[str, Any]

    @classmethod
    def of(cls, case: Case) -> Batch:
        work = case["workload"]
        engine = engine_of(case)
        tp, dp, ep = (case.get(key) or 1 for key in ("tp", "dp", "ep"))
        if case.get("device_id") is None:
            raise InputError("the case names no device")
        model, device = load_model(case["model_id"]), load_device(case["device_id"])
        cost = CostModel.of(
            model, seen_by(engine, device, tp, ep), host_of(engine, model.layers, tp, ep), tp=tp, ep=ep, dp=dp,
            weights_dtype=case.get("weights_dtype"), kv_dtype=case.get("kv_dtype_id") or "bf16",
            repeated_reads=engine.repeated_reads,
        )  # fmt: skip
        size = work.get("batch") or work.get("concurrency") or 0
        if not size:
            raise InputError("the case states no batch")
        return cls(cost, engine, int(size), int(work.get("input_len") or 0), int(work.get("output_len") or 1),
                   (1 / tp if case.get("per_gpu") else 1.0), work.get("other") or {})  # fmt: skip

    @property
    def note(self) -> str:
        return f"{self.cost.tier(self._decode(self.prompt + 1))}"

    def answer(self, metric: str) -> tuple[Callable[[float], float], StepShape, str]:
        """(factor on all times → the metric in SI units, the step to quote an error on, decode or prefill or batch)."""
        first, last = self.prompt + 1, self.prompt + self.output
        middle, chunk = self._decode((first + last) // 2), self._prefill()
        if metric in ("step_prefill", "ttft_mean"):
            return lambda factor: self._prefill_s(factor), chunk, "prefill"
        if metric == "step_decode":
            return lambda factor: self._decode_s(factor) / max(1, self.output - 1), middle, "decode"
        if metric == "other" and "slope" in str(self.other.get("fit", "")):
            longest, shortest = self._decode(LONG[1]), self._decode(LONG[0])
            return lambda factor: self._slope(factor), longest if longest else shortest, "slope"
        if metric == "total_tokens_per_s":
            return lambda factor: self.size * self.prompt / self._prefill_s(factor) * self.share, chunk, "prefill"
        if metric == "output_tokens_per_s" and self.other.get("source_type") == "decode":
            return lambda factor: self.size * (self.output - 1) / self._decode_s(factor) * self.share, middle, "decode"
        if metric == "output_tokens_per_s":
            def rate(factor: float) -> float:
                return self.size * self.output / (self._prefill_s(factor) + self._decode_s(factor)) * self.share

            return rate, middle, "batch"
        raise InputError(f"metric {metric} is not predicted by the step rung")

    def _slope(self, factor: float) -> float:
        cost = self.cost.scaled(factor)
        return (cost.step(self._decode(LONG[1])) - cost.step(self._decode(LONG[0]))) / (LONG[1] - LONG[0]) / NS_PER_S

    def _prefill_s(self, factor: float) -> float:
        """Seconds until all prompts are done: in steps of whole prompts, as many as the engine's budget takes."""
        cost, limit = self.cost.scaled(factor), self.engine.limits.max_num_batched_tokens
        whole = self.size if not self.engine.limits.whole_prompts else max(1, limit // max(1, self.prompt))
        steps, rest = divmod(self.size, whole)
        total = steps * cost.step(self._prefill(whole)) + (cost.step(self._prefill(rest)) if rest else 0)
        return total / NS_PER_S

    def _decode_s(self, factor: float) -> float:
        """Seconds of all decode steps: the first token comes with the prefill."""
        return float(self.cost.scaled(factor).decode_run(self._decode(self.prompt + 1), max(1, self.output - 1)).sum()
                     ) / NS_PER_S  # fmt: skip

    def _prefill(self, size: int | None = None) -> StepShape:
        size = size or self.size
        return StepShape(chunks=((max(1, self.prompt), 0),) * size, sampled=size)

    def _decode(self, length: int) -> StepShape:
        """Every sequence attends `length` tokens."""
        windows = [group.decode.window for group in self.cost.geometry.attention]
        each = tuple(min(length, window) if window else length for window in windows)
        grows = tuple(not window or length < window for window in windows)
        return StepShape(decode=self.size, attended=tuple(self.size * x for x in each), longest=each,
                         growing=tuple(self.size * grow for grow in grows), longest_grows=grows,
                         sampled=self.size)  # fmt: skip
