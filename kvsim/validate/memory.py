"""Memory rung: do we get the engine's KV budget? Published start-up logs against `plan_memory`.

What a case states is used, what it doesn't state is ours. Groups by what had to be assumed:
* `bytes`: KV bytes of a token or block, nothing but geometry
* `weights`: resident weights of a GPU
* `stated`: the whole budget is stated (pool, or weights, activation peak and non-torch)
* `assumed`: some of it is ours
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import isqrt
from pathlib import Path

from kvsim.device import DeviceProfile, catalogue, load_device
from kvsim.engine_profile import EngineProfile
from kvsim.errors import InputError
from kvsim.memory import MemoryPlan, Stated, plan_memory
from kvsim.model import ModelSpec, load_model
from kvsim.units import GIB
from kvsim.validate.cases import Case, engine_of, read_cases, rounding, split
from kvsim.validate.report import Goal, Report, Row

GOALS = (
    Goal("bytes", "coverage90", 1.0),
    Goal("stated", "max_abs", 0.01),
    Goal("assumed", "median_abs", 0.08),
)
"""bytes: exact, so that every difference is the rounding of what was published"""

_SIZES: dict[str, Callable[[MemoryPlan], int]] = {
    "kv_blocks": lambda plan: plan.blocks,
    "kv_tokens": lambda plan: plan.tokens,
    "kv_bytes": lambda plan: plan.pool,
}
_WEIGHTS_SPREAD = 0.02
"""buffers and padding that formats and loaders add to the weights: 90 % of what is seen"""


def validate_memory(path: Path) -> Report:
    """Predict every memory case of a file that can be checked."""
    rows: list[Row] = []
    skipped: Counter[str] = Counter()
    for case in read_cases(path, "memory"):
        if "memory" not in case["checkable"]:
            skipped[f"not checkable: {case.get('why_not') or 'the file says so'}"] += 1
            continue
        try:
            rows.append(_predict(case))
        except InputError as error:
            skipped[str(error)] += 1
    return Report("memory", rows, dict(skipped), GOALS)


def _predict(case: Case) -> Row:
    """Raises InputError for what we can't predict: an unknown model or metric."""
    model = load_model(case["model_id"])
    tp, pp, ep = (case.get(key) or 1 for key in ("tp", "pp", "ep"))
    metric, kv_dtype = case["metric_id"], case.get("kv_dtype_id") or "bf16"
    work = case["workload"]
    if metric in ("kv_bytes_per_token", "kv_bytes_per_block"):
        size = model.kv_bytes_per_token(kv_dtype, tp, pp)
        size *= work.get("block_size") or 16 if metric == "kv_bytes_per_block" else 1
        return _row(case, "bytes", size, 0, "")
    if metric == "kv_bytes" and work.get("input_len"):
        return _row(case, "bytes", model.kv_bytes_per_request(work["input_len"], kv_dtype, tp, pp), 0, "")
    engine = engine_of(case)
    if metric == "weights_bytes":
        plan = plan_memory(model, 1 << 50, engine, tp=tp, pp=pp, ep=ep, weights_dtype=case.get("weights_dtype"))
        return _row(case, "weights", plan.weights, int(plan.weights * _WEIGHTS_SPREAD), "")
    if metric not in _SIZES:
        raise InputError(f"metric {metric} is not predicted by the memory rung")
    return _budget(case, model, engine, _SIZES[metric], tp=tp, pp=pp, ep=ep, kv_dtype=kv_dtype)


def _budget(
    case: Case, model: ModelSpec, engine: EngineProfile, size: Callable[[MemoryPlan], int], *, tp: int, pp: int,
    ep: int, kv_dtype: str,
) -> Row:
    """The pool of a start-up log. Where the GPU isn't named: the mean over those it may be."""
    work = case["workload"]
    stated = _stated(case)
    total = _total(work)
    devices = [load_device(name) for name in case.get("device_candidates") or () if name in catalogue()]
    if not devices and stated.pool is None and total is None:
        raise InputError("neither the device nor its memory is stated")
    targets: list[DeviceProfile | int] = [*devices] if devices else [total or 1 << 40]
    plans = [
        plan_memory(
            model, _with_memory(device, total), engine, tp=tp, pp=pp, ep=ep, kv_dtype=kv_dtype,
            weights_dtype=case.get("weights_dtype"), gpu_memory_utilization=_share(work),
            max_model_len=work.get("max_model_len"), max_num_seqs=work.get("max_num_seqs"),
            max_num_batched_tokens=work.get("max_num_batched_tokens"), block_size=work.get("block_size"),
            stated=stated, advise=False,
        )
        for device in targets
    ]  # fmt: skip
    plans = [plan for plan in plans if plan.fits] or plans[:1]  # it did start, so those that don't fit it was not
    mean = sum(size(plan) for plan in plans) // len(plans)
    apart = (max(plan.pool for plan in plans) - min(plan.pool for plan in plans)) // 2
    pool = sum(plan.pool for plan in plans) // len(plans)
    half = isqrt(max(plan.spread for plan in plans) ** 2 + apart**2 + _rounding(work) ** 2)
    whole = stated.whole_budget(engine) and (stated.pool is not None or total is not None)
    width = int(mean * half / max(1, pool)) + (1 if case["metric_id"] == "kv_blocks" else plans[0].block_size)
    return _row(case, "stated" if whole else "assumed", mean, width, _assumed(stated, total, devices))


def _stated(case: Case) -> Stated:
    work = case["workload"]

    def part(key: str) -> int | None:
        return None if work.get(key) is None else round(work[key] * GIB)

    return Stated(weights=part("weights_gib"), activations=part("activation_peak_gib"), non_torch=part("non_torch_gib"),
                  graphs=part("cuda_graph_gib"), pool=part("available_kv_gib"))  # fmt: skip


def _total(work: Case) -> int | None:
    """The device's memory as the log states it."""
    size: float | None = work.get("total_gpu_memory_bytes")
    if size is None and work.get("total_gpu_memory_gib"):
        size = work["total_gpu_memory_gib"] * GIB
    if size is None and work.get("usable_gib") and work.get("gpu_memory_utilization"):
        size = work["usable_gib"] * GIB / work["gpu_memory_utilization"]
    return None if size is None else round(size)


def _share(work: Case) -> float | None:
    """Of whatever the engine takes it of."""
    share = work.get("gpu_memory_utilization") or work.get("kv_memory_fraction")
    return None if share is None else float(share)


def _with_memory(device: DeviceProfile | int, total: int | None) -> DeviceProfile | int:
    if total is None or isinstance(device, int):
        return device
    return device.model_copy(update={"facts": device.facts.model_copy(update={"memory_bytes": total})})


def _rounding(work: Case) -> int:
    """Half a unit of the last printed digit of every stated part, combined (GiB as printed → bytes)."""
    total = 0.0
    for key in ("total_gpu_memory_gib", "weights_gib", "non_torch_gib", "activation_peak_gib", "available_kv_gib"):
        value = work.get(key)
        if value is not None:
            digits = len(repr(float(value)).partition(".")[2])
            total += (0.5 * 10**-digits * GIB) ** 2
    return int(total**0.5)


def _assumed(stated: Stated, total: int | None, devices: list[DeviceProfile]) -> str:
    if stated.pool is not None:
        return ""
    parts = {"total": total, "weights": stated.weights, "activations": stated.activations,
             "non-torch": stated.non_torch}  # fmt: skip
    ours = [name for name, value in parts.items() if value is None]
    words = "all parts" if len(ours) == len(parts) else ", ".join(ours)
    return f"{words}; mean of {len(devices)} devices" if len(devices) > 1 and total is None else words


def _row(case: Case, group: str, predicted: float, half: int, note: str) -> Row:
    true = float(case["value_si"])
    interval = (float(predicted - half), float(predicted + half))
    return Row(case["id"], group, case["metric_id"], float(predicted), true, interval, note, rounding(case),
               split(case))  # fmt: skip
