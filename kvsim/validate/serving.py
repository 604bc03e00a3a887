"""Serving rung: TTFT, TPOT and throughput under load. `validate serving` takes published cases or measured runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.interval import interval, number
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.setup import Setup, prepare
from kvsim.simulate import results
from kvsim.validate.cases import Case, engine_of, read_all, rounding, split
from kvsim.validate.published import as_published
from kvsim.validate.report import Goal, Report, Row
from kvsim.validate.step import predict as predict_static
from kvsim.validate.workload import trace_of_case

ENGINES = ("vllm-1", "vllm-0", "trtllm", "lmdeploy", "sglang")
GOALS = (
    *(Goal(engine, statistic, bound) for engine in ENGINES for statistic, bound in (("median_abs", 0.10),
                                                                                      ("p90_abs", 0.25))),
    Goal("", "coverage90", 0.85),
)  # fmt: skip
TOKENIZE_S = 5e-6
"""for a token: Hugging Face's tokenizers 0.23 on one core, 20,000 random tokens as text (as vLLM's benchmark makes
prompts), a vocabulary of 49,152: 4.7 to 6.9 µs; prose 2.8 to 3.9 µs. Fitted on no case"""

Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class Prediction:
    """A run's summary and those of its fast and slow end."""

    summaries: tuple[dict[str, Any], ...]
    tier: str

    @classmethod
    def of(cls, found: list[Result]) -> Prediction:
        return cls(tuple(result.summary for result in found), found[0].run["provenance"]["tier"])

    def begun_after(self, seconds: float) -> Prediction:
        """The same run where so long passes, and is timed, before the engine has its first request."""
        found = []
        for summary in self.summaries:
            share = summary["duration_s"] / (summary["duration_s"] + seconds)
            rates = {name: None if rate is None else rate * share for name, rate in summary["throughput"].items()}
            found.append({**summary, "throughput": rates})
        return Prediction(tuple(found), self.tier)

    def row(self, name: str, group: str, metric: str, true: float, *, factor: float = 1.0, more: float = 0.0,
            rounding: float = 0.0, note: str = "", split: str = "") -> Row:  # fmt: skip
        """One number of it beside the truth: × `factor`, then + `more`, in the truth's convention."""
        value = number(self.summaries[0], metric)
        if value is None:
            raise InputError(f"metric {metric} is undefined: no request completed")
        low, high = interval(self.summaries, (metric,))[metric]
        return Row(name, group, metric, value * factor + more, true, (low * factor + more, high * factor + more),
                   note or self.tier, rounding, split)  # fmt: skip


def validate_cases(path: Path, engine_filter: str = "", progress: Progress | None = None) -> Report:
    """Predict every published case of a file that the serving rung can check; cases of one workload share a run."""
    cases = [case for case in read_all(path) if "serving" in case["checkable"]
             and (case.get("engine_id") or "").startswith(engine_filter)]  # fmt: skip
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    unpredicted: Counter[str] = Counter()
    known: dict[str, Prediction | InputError] = {}
    for index, case in enumerate(cases):
        if progress is not None:
            progress(index, len(cases))
        if case.get("needs"):
            skipped[f"needs {case['needs']}"] += 1
            continue
        try:
            rows.append(_predict(case, known))
        except InputError as error:
            unpredicted[str(error)] += 1
    return Report("serving", rows, dict(skipped | unpredicted), GOALS, dict(unpredicted))


def _predict(case: Case, known: dict[str, Prediction | InputError]) -> Row:
    engine = case.get("engine_id") or "other"
    if case["workload"]["type"] == "static":
        row = predict_static(case)
        return Row(row.id, engine, row.metric, row.predicted, row.true, row.interval, row.note, row.rounding,
                   row.split)  # fmt: skip
    same = ("engine_id", "engine_version", "model_id", "device_id", "weights_dtype", "kv_dtype_id", "tp", "pp", "dp",
            "ep", "workload")  # fmt: skip
    key = repr([case.get(name) for name in same])
    if key not in known:
        try:
            known[key] = _run(case)
        except InputError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, InputError):
        raise found
    metric, factor = case["metric_id"], 1.0
    if metric.endswith("_per_s"):
        factor = _copies(case) / (case["n_gpus"] if case.get("per_gpu") else 1)
    return found.row(case["id"], engine, metric, float(case["value_si"]), factor=factor, more=_before_engine_s(case),
                     rounding=rounding(case), split=split(case))  # fmt: skip


def _before_engine_s(case: Case) -> float:
    """Seconds that a client's TTFT holds before the engine has the request: vLLM's server tokenizes the prompt.

    Recorded workloads were sent as token ids, and timed in the engine."""
    work = case["workload"]
    counts = case["metric_id"].startswith("ttft") and str(case.get("engine_id")).startswith("vllm")
    return TOKENIZE_S * work["input_len"] if counts and work["arrival"] != "trace" else 0.0


def _run(case: Case) -> Prediction:
    trace = trace_of_case(case["workload"], _copies(case))
    found = Prediction.of(results(trace, as_published(setup_of(case), case)))
    if case.get("engine_id") == "vllm-0" and case["workload"]["type"] == "offline":  # generate() takes them one by one
        return found.begun_after(TOKENIZE_S * float(trace.prompt_tokens.sum()))
    return found


def _copies(case: Case) -> int:
    """Engines that share the requests, one of which is run: replicas, unless they share experts and so are one."""
    return 1 if (case.get("ep") or 1) > (case.get("tp") or 1) else case.get("dp") or 1


def setup_of(case: Case) -> Setup:
    """One engine as the case describes it. Raises InputError for what we have no model, device or engine of."""
    work, engine = case["workload"], engine_of(case)
    if case.get("device_id") is None:
        raise InputError("the case names no device")
    if case.get("model_id") is None:
        raise InputError("the case names no model")
    longest = work.get("max_model_len")
    return prepare(Scenario(
        trace="case", model=case["model_id"], device=case["device_id"], tp=case.get("tp") or 1, pp=case.get("pp") or 1,
        ep=case.get("ep") or 1, replicas=(case.get("dp") or 1) // _copies(case),
        engine=engine.id if engine.id == "sglang" else f"{engine.id}@{engine.version}",
        weights_dtype=case.get("weights_dtype"), kv_dtype=case.get("kv_dtype_id"), max_model_len=longest,
        max_num_seqs=work.get("max_num_seqs"), max_num_batched_tokens=work.get("max_num_batched_tokens"),
        gpu_memory_utilization=work.get("gpu_memory_utilization") or work.get("kv_memory_fraction"),
        block_size=work.get("block_size"), prefix="off" if work.get("prefix_caching") is False else None,
    ))  # fmt: skip
