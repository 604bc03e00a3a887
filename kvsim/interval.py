"""The 90 % interval of a run's numbers: where it comes from, and how wide it is.

Two more runs, one at each common end: every step as fast, or as slow, as the errors of the cost model's terms allow
together (kernels, and the engine's constants by their spread), with a KV pool as large, or as small, as the memory
plan's spread allows. Queueing is not linear in either, so the ends are simulated, not scaled. Both are then widened by
what such an end can't show: differences between requests that a common factor does not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvsim.cost import CostModel, StepShape
from kvsim.memory import MemoryPlan

INTERVAL = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "output_tokens_per_s")
"""the metrics of a Result's `interval`"""
REST = {"ttft": 0.05, "itl": 0.03}
_REST = 0.02
"""the independent part, as a share of a metric: what calibrated runs still miss once their mean step time is right
(kvsim validate serving on measured runs: TTFT up to 5 %, TPOT and throughput up to 2 %)"""


def ends(cost: CostModel, memory: MemoryPlan, shape: StepShape) -> tuple[tuple[CostModel, MemoryPlan], ...]:
    """(cost, memory) at the fast and at the slow end; `shape` is the step that the errors are quoted on."""
    band = cost.error_band(shape)
    return (cost.scaled(band.low), _resized(memory, memory.spread)), (
        cost.scaled(band.high), _resized(memory, -memory.spread))  # fmt: skip


def _resized(memory: MemoryPlan, by: int) -> MemoryPlan:
    """The plan with a pool larger by so many bytes, in whole blocks; it keeps room for its longest request."""
    block = memory.group_token_bytes * memory.block_size
    least = min(memory.pool, memory.pool // 2)
    pool = max(least, memory.pool + by) // block * block
    return replace(memory, pool=pool, blocks=pool // block, unmanaged=memory.unmanaged + memory.pool - pool)


def interval(summaries: Sequence[dict[str, Any]], names: Sequence[str] = INTERVAL) -> dict[str, list[float]]:
    """[low, high] of each metric over the summaries of a run and its two ends, widened by the independent part."""
    found = {}
    for name in names:
        values = [value for value in (number(summary, name) for summary in summaries) if value is not None]
        if values:
            rest = 1 + REST.get(name.partition("_")[0], _REST)
            found[name] = [min(values) / rest, max(values) * rest]
    return found


def number(summary: dict[str, Any], name: str) -> float | None:
    """A number of the object of `simulate --json` by its short name: `ttft_p50`, `output_tokens_per_s`."""
    if name in summary["throughput"]:
        value: float | None = summary["throughput"][name]
        return value
    metric, _, statistic = name.partition("_")
    return summary["latency_s"][metric][statistic]  # type: ignore[no-any-return]
