"""The examples again, on the real traces that their synthetic traffic is made after."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from kvsim.sweep import Store, read_sweep, sweep
from kvsim.workers import InProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
AZURE, MOONCAKE = "azure_2023_conv.csv.gz", "mooncake_conversation.jsonl.gz"
CLAUDE = "claude_code_conversations_0001-0140.tar.xz"
pytestmark = pytest.mark.shared


def rows(file: str, shared: Path, tmp_path: Path, real: dict[str, str], limit: int) -> pl.DataFrame:
    """The sweep's results with traces that begin with a key replaced by the real one."""
    scenarios = []
    for one in read_sweep(EXAMPLES / file):
        for begin, name in real.items():
            if one.trace.startswith(begin):
                trace = str(shared / "traces" / name)
                scenarios.append(one.replace(trace=trace, limit=limit, max_model_len=None))
    assert scenarios
    outcome = sweep(scenarios, Store(tmp_path / "out"), executor=InProcess())
    assert outcome.failed == {}
    return pl.read_parquet(tmp_path / "out" / "runs" / "*.parquet")


def test_chat_is_sized_on_azures_hour(shared: Path, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "plan_chat.py", shared / "traces" / AZURE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "best: 1 × " in done.stdout


def test_int8_against_more_gpus_on_azures_hour(shared: Path, tmp_path: Path) -> None:
    found = rows("sweep_int8.toml", shared, tmp_path, {"sample": AZURE}, limit=150)
    assert (found["completed"] == 150).all()
    pool = {(policy, tp): tokens for policy, tp, tokens in found["policy", "tp", "kv_tokens"].iter_rows()}
    assert pool["paged-int8", 1] > 1.9 * pool["paged", 1] and pool["paged", 2] > 3 * pool["paged", 1]


def test_long_context_shares_prefixes_on_mooncake(shared: Path, tmp_path: Path) -> None:
    found = rows("sweep_long_context.toml", shared, tmp_path, {"synth:mooncake-chat": MOONCAKE}, limit=150)
    hits = {(policy, router): hit for policy, router, hit in found["policy", "router", "prefix_hit_share"].iter_rows()}
    assert hits["paged", "round-robin"] == 0 < hits["paged-prefix", "round-robin"]
    assert hits["paged-prefix", "prefix-affinity"] >= hits["paged-prefix", "round-robin"]


def test_routers_failures_and_separate_pools_on_azures_hour(shared: Path, tmp_path: Path) -> None:
    found = rows("sweep_routers.toml", shared, tmp_path, {"synth:chat": AZURE}, limit=200)
    assert found.height == 6 and (found["completed"] == 200).all()


@pytest.mark.slow
def test_coding_agents_come_back_on_claude_code(shared: Path, tmp_path: Path) -> None:
    found = rows("sweep_long_context.toml", shared, tmp_path, {"synth:chat": CLAUDE}, limit=60)
    hits = {(policy, router): hit for policy, router, hit in found["policy", "router", "prefix_hit_share"].iter_rows()}
    assert hits["paged-prefix", "prefix-affinity"] > 0.5 and hits["paged", "prefix-affinity"] == 0
