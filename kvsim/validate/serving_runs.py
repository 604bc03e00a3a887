"""Measured vLLM runs (LLMServingSim's bench): the same requests, at the same times, under the same limits.

A run is a folder with `requests.jsonl` (times of each request), `meta.json` (vLLM's version and arguments) and
`config.json` (the GPU); the workload beside it has the prompts' token ids. What vLLM was not told is its default.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.device import catalogue
from kvsim.errors import InputError
from kvsim.scenario import Scenario
from kvsim.setup import Setup, prepare
from kvsim.simulate import results
from kvsim.trace import Trace, load
from kvsim.trace.files import Member, open_source
from kvsim.validate.report import Goal, Report, Row, split_of
from kvsim.validate.serving import Prediction

METRICS = ("ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean", "tpot_p50", "tpot_p99", "output_tokens_per_s")
BOUNDS = {"tpot_mean": 0.03, "tpot_p50": 0.03, "output_tokens_per_s": 0.03, "ttft_mean": 0.05, "ttft_p50": 0.05,
          "ttft_p99": 0.10, "tpot_p99": 0.10}  # fmt: skip
"""goals for one replica"""
SPLIT_BOUNDS = {"tpot_mean": 0.05, "tpot_p50": 0.05, "output_tokens_per_s": 0.05, "ttft_mean": 0.10, "ttft_p50": 0.10,
                "ttft_p99": 0.15, "tpot_p99": 0.15}  # fmt: skip
"""and for replicas that share their experts"""


def is_run(path: Path) -> bool:
    """Whether `path` is, or holds, a measured run rather than a file of cases."""
    return path.is_dir() or any(name in path.name for name in (".tar", ".tgz"))


def validate_runs(path: Path, device: str | None = None, progress: Callable[[float, float], None] | None = None
                  ) -> Report:  # fmt: skip
    """Replay every measured run in a folder or tar. Raises InputError where there is none, or it is not understood."""
    source = open_source(str(path))
    folders = sorted(m.name.rpartition("/")[0] for m in source.members if m.name.rpartition("/")[2] == "requests.jsonl")
    if not folders:
        raise InputError(f"{path} holds no measured run: it needs requests.jsonl and meta.json, in it or in folders")
    rows: list[Row] = []
    goals: list[Goal] = []
    for index, folder in enumerate(folders):
        if progress is not None:
            progress(index, len(folders))
        inside = {m.name.rpartition("/")[2]: m for m in source.members if m.name.rpartition("/")[0] == folder}
        run = MeasuredRun.read(f"{path}::{folder}" if folder else str(path), inside, device)
        rows += run.rows()
        goals += run.goals()
    return Report("serving", rows, {}, goals)


@dataclass(frozen=True)
class MeasuredRun:
    """One run: what vLLM was told, what was sent, and what happened."""

    name: str
    device: str
    version: str
    arguments: dict[str, Any]
    trace: Trace
    measured: dict[str, float]
    """metric → truth, in seconds or tokens a second"""

    @classmethod
    def read(cls, where: str, inside: dict[str, Member], device: str | None) -> MeasuredRun:
        meta = _json(inside, "meta.json", where)
        rows = [json.loads(line) for _, line in inside["requests.jsonl"].lines()]
        if device is None:
            device = _device(_json(inside, "config.json", where), where)
        try:
            return cls(where.rpartition("::")[2].rpartition("/")[2], device, meta["vllm_version"],
                       meta["engine_kwargs"], load(where), _truth(rows))  # fmt: skip
        except KeyError as error:
            raise InputError(f"{where}: {error} is missing in its meta.json or requests.jsonl") from None

    @property
    def replicas(self) -> int:
        return int(self.arguments.get("data_parallel_size") or 1)

    def rows(self) -> list[Row]:
        """Predicted against measured, one row a metric."""
        prediction = Prediction.of(results(self.trace, self.setup()))
        tp, copies = self.arguments.get("tensor_parallel_size") or 1, self.replicas
        split = split_of(tp=tp, dp=copies, ep=tp * copies if copies > 1 else 1)
        return [prediction.row(self.name, self.name, metric, self.measured[metric], split=split) for metric in METRICS]

    def goals(self) -> list[Goal]:
        bounds = BOUNDS if self.replicas == 1 else SPLIT_BOUNDS
        return [Goal(self.name, "max_abs", bound, metric) for metric, bound in bounds.items()]

    def setup(self) -> Setup:
        """The run's arguments. Replicas that share experts are one engine in lockstep (kvsim.setup)."""
        told, count = self.arguments, self.replicas
        if count > 1 and not told.get("enable_expert_parallel"):
            raise InputError(f"{self.name}: {count} replicas without expert parallelism are {count} runs, not one")
        tp = told.get("tensor_parallel_size") or 1
        scenario = Scenario(
            trace=self.name, model=told["model"], device=self.device, engine=f"vllm-1@{self.version}",
            tp=tp, replicas=count, ep=tp * count if count > 1 else 1, max_num_seqs=told.get("max_num_seqs"),
            max_num_batched_tokens=told.get("max_num_batched_tokens"), max_model_len=told.get("max_model_len"),
            kv_dtype=None if told.get("kv_cache_dtype") == "auto" else told.get("kv_cache_dtype"),
        )  # fmt: skip
        return prepare(scenario)


def _truth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The metrics of the measured times, by kvsim's definitions (`*_ts` in seconds, one clock)."""
    queued, first, last = (np.array([row[name] for row in rows]) for name in ("queued_ts", "first_token_ts",
                                                                             "last_token_ts"))  # fmt: skip
    output = np.array([row["output_toks"] for row in rows])
    found = {"output_tokens_per_s": float(output.sum() / (last.max() - queued.min()))}
    many = output > 1
    for name, values in (("ttft", first - queued), ("tpot", (last - first)[many] / (output[many] - 1))):
        found |= {f"{name}_mean": float(values.mean()), f"{name}_p50": float(np.quantile(values, 0.5)),
                  f"{name}_p99": float(np.quantile(values, 0.99))}  # fmt: skip
    return found


def _json(inside: dict[str, Member], name: str, where: str) -> dict[str, Any]:
    if name not in inside:
        raise InputError(f"{where} is no measured run: it has no {name}")
    try:
        found: dict[str, Any] = json.loads(inside[name].text())
    except ValueError as error:
        raise InputError(f"{inside[name].label} is not JSON: {error}") from None
    return found


def _device(config: dict[str, Any], where: str) -> str:
    """The GPU that the bench's own simulator was told: RTXPRO6000 is rtx-pro-6000."""
    try:
        hardware = config["nodes"][0]["instances"][0]["hardware"]
    except (KeyError, IndexError, TypeError):
        raise InputError(f"{where}: its config.json names no hardware; say --device") from None
    for name in catalogue():
        if name.replace("-", "") == str(hardware).lower().replace("-", ""):
            return name
    raise InputError(f"{where}: hardware {hardware!r} is no device that kvsim knows; say --device")
