"""What the sources of published cases say beside their tables, and our reading of the tables leaves out."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from kvsim.cost import CostModel
from kvsim.device import CollectiveCurve, DeviceProfile, HeldOutError, Provenance
from kvsim.device.forms import CollectiveForm
from kvsim.memory import MemoryPlan
from kvsim.setup import Setup
from kvsim.validate.cases import Case

LMDEPLOY_A100 = "benchmark/a100_fp16.md"
"""LMDeploy's tables of an A100. Its scripts (benchmark/benchmark_{7b,13b,20b,70b}.sh) write the engine's config:"""
LMDEPLOY_BLOCKS = {"llama-2-7b": 1000, "llama-2-13b": 500, "internlm-20b": 700, "llama-2-70b": 4000}
"""… cache_max_entry_count, where a number above one counts blocks (docs/en/inference/turbomind_config.md)"""
NCCL = CollectiveForm(fixed_ns=25_000, efficiency=0.75)
"""vLLM without its own all-reduce. Fitted to the fastest of each size's runs in Vidur's table of 4 and 8 H100 (MIT)"""
NCCL_ERROR = HeldOutError(median=0.07, p95=0.35)


def as_published(setup: Setup, case: Case) -> Setup:
    """The setup of a case with what its source set."""
    blocks = LMDEPLOY_BLOCKS.get(case["model_id"]) if LMDEPLOY_A100 in str(case.get("source")) else None
    if blocks is not None:
        setup = replace(setup, memory=_with_blocks(setup.memory, blocks))
    if (case["workload"].get("other") or {}).get("custom_all_reduce") is False:
        cost = setup.cost
        setup = replace(setup, cost=CostModel(cost.geometry, _over_nccl(cost.device), cost.host))
    return setup


def _with_blocks(memory: MemoryPlan, blocks: int) -> MemoryPlan:
    """The plan with so many blocks in its pool: known, so without a spread."""
    pool = blocks * memory.block_size * memory.group_token_bytes * len(memory.windows)
    return replace(memory, pool=pool, blocks=blocks, spread=0, unmanaged=memory.unmanaged + memory.pool - pool)


def _over_nccl(device: DeviceProfile) -> DeviceProfile:
    """The device with NCCL's all-reduce in place of vLLM's."""
    curve = CollectiveCurve(gpus=8, form=NCCL, bytes=(1.0,), ratio=(1.0,), source="nccl")
    origin = Provenance(tier="imported", source="microsoft/vidur data/profiling, h100_dgx all_reduce", licence="MIT",
                        date=date(2026, 11, 30), points=NCCL_ERROR)  # fmt: skip
    return device.model_copy(update={"provenance": {**device.provenance, "nccl": origin},
                                     "curves": device.curves.model_copy(update={"collective": (curve,)})})  # fmt: skip
