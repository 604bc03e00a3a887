"""Published facts about cache policies, reproduced.

PagedAttention (Kwon et al. 2023), figure 2: share of KV memory that really holds tokens under Orca (max), Orca (pow2),
Orca (oracle) and vLLM: 20.4, 26.8, 38.2 and 96.3 %. Its caption names neither trace nor rate. Here: OPT-13B on an A100
of 40 GB, ShareGPT lengths, Poisson at 4 requests a second, while requests wait; nothing was tuned to the figure.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kvsim.result import MEMORY
from kvsim.scenario import Scenario
from kvsim.simulate import run, trace_of

pytestmark = pytest.mark.shared
FIGURE_2 = {"contiguous": 0.204, "buddy": 0.268, "orca-oracle": 0.382, "paged": 0.963}


@pytest.fixture(scope="module")
def used(shared: Path) -> dict[str, float]:
    """Policy → mean share of the pool that holds tokens while requests wait."""
    base = Scenario(
        trace=str(shared / "traces/lengths_sharegpt_val_10k_llama2.csv.gz"), arrivals="poisson:4", limit=800,
        model="opt-13b", device="a100-40-sxm", max_model_len=2048, interval=False,
    )
    trace = trace_of(base)
    shares = {}
    for policy in FIGURE_2:
        engine = "vllm-0" if policy == "paged" else "orca"
        result = run(base.replace(policy=policy, engine=engine), trace=trace)
        busy = result.timeline.filter(pl.col("waiting") > 5)
        shares[policy] = float(busy.select((pl.col("used") / pl.sum_horizontal(MEMORY)).mean()).item())
    return shares


def test_order_of_figure_2(used: dict[str, float]) -> None:
    assert used["contiguous"] < used["buddy"] < used["orca-oracle"] < used["paged"]


@pytest.mark.parametrize("policy", FIGURE_2)
def test_shares_of_figure_2(used: dict[str, float], policy: str) -> None:
    assert used[policy] == pytest.approx(FIGURE_2[policy], abs=0.03), used
