"""What the sources of published cases say beside their tables, and our reading of the tables leaves out."""

from __future__ import annotations

from dataclasses import replace

from kvsim.cost import CostModel
from kvsim.cost.nccl import over_nccl
from kvsim.memory import MemoryPlan
from kvsim.setup import Setup
from kvsim.validate.cases import Case

LMDEPLOY_A100 = "benchmark/a100_fp16.md"
"""LMDeploy's tables of an A100. Its scripts (benchmark/benchmark_{7b,13b,20b,70b}.sh) write the engine's config:"""
LMDEPLOY_BLOCKS = {"llama-2-7b": 1000, "llama-2-13b": 500, "internlm-20b": 700, "llama-2-70b": 4000}
"""… cache_max_entry_count, where a number above one counts blocks (docs/en/inference/turbomind_config.md)"""


def as_published(setup: Setup, case: Case) -> Setup:
    """The setup of a case with what its source set."""
    blocks = LMDEPLOY_BLOCKS.get(case["model_id"]) if LMDEPLOY_A100 in str(case.get("source")) else None
    if blocks is not None:
        setup = replace(setup, memory=_with_blocks(setup.memory, blocks))
    if (case["workload"].get("other") or {}).get("custom_all_reduce") is False:
        cost = setup.cost
        setup = replace(setup, cost=CostModel(cost.geometry, over_nccl(cost.device), cost.host))
    return setup


def _with_blocks(memory: MemoryPlan, blocks: int) -> MemoryPlan:
    """The plan with so many blocks in its pool: known, so without a spread."""
    pool = blocks * memory.block_size * memory.group_token_bytes * len(memory.windows)
    return replace(memory, pool=pool, blocks=blocks, spread=0, unmanaged=memory.unmanaged + memory.pool - pool)
