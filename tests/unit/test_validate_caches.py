"""The fragmentation and hit-rate rungs: small cases by hand, and the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim import cli
from kvsim.trace.types import make_trace
from kvsim.validate.fragmentation import layout, saturated, shared_blocks, validate_fragmentation
from kvsim.validate.hit_rate import validate_hit_rate

SLOTS = 15_700
"""tokens of KV memory in the paper: OPT-13B on an A100 of 40 GB"""


def test_one_request_alone_is_half_full_on_average() -> None:
    """A prompt of 1 and 1,023 more tokens in a reservation of 2,048: 1 … 1,024 tokens, one a step."""
    usage = saturated(layout("Orca (Max)", 2048, 2048), [(1, 1024)])
    assert usage.used_share == pytest.approx(512.5 / 2048, rel=0.01)
    assert usage.used_share + usage.reserved_share == pytest.approx(0.5)
    assert usage.internal_share == pytest.approx(0.5)
    assert usage.external_share == 0
    assert usage.batched_requests == 1


def test_what_a_buddy_block_is_larger_than_its_reservation_counts_as_external() -> None:
    usage = saturated(layout("Orca (Oracle)", 1024, 1024), [(301, 300)])
    assert usage.internal_share == 0
    assert usage.external_share == pytest.approx(1 - 600 / 1024)


def test_preempted_requests_end_too() -> None:
    usage = saturated(layout("vLLM", 320, 300), [(16, 200)] * 30)
    assert usage.used_share > 0.8
    assert 1 < usage.batched_requests < 6


def test_sharing_saves_what_the_prompt_holds() -> None:
    """A prompt of 160 tokens fills 10 blocks, which the second sample need not hold again."""
    assert shared_blocks([(160, 1)], range(2, 3)) == pytest.approx(0.5)
    assert shared_blocks([(15, 10)], range(2, 7)) == 0


def test_published_hit_rates_are_matched_by_trace(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        case("a", "conversation", metric="block_hit_rate", value=0.25, policy="LRU"),
        case("b", "conversation", metric="prefix_cache_ratio", value=0.25),
        case("c", "synthetic", metric="block_hit_rate", value=0.5),
        case("d", "conversation", metric="block_hit_rate", value=0.5, policy="LengthAware"),
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in cases))
    trace = make_trace(
        "my_conversation", "test", [0, 1], [17, 17], [1, 1], block_size=8, block_rule="floor",
        block_ids=np.array([0, 1, 0, 2], np.int64), block_start=np.array([0, 2, 4]),
    )  # fmt: skip
    report = validate_hit_rate(path, trace)
    assert {row.id: row.predicted for row in report.rows} == {"a": 0.25, "b": 8 / 34}
    assert sum(report.skipped.values()) == 2


def case(id: str, trace: str, *, metric: str, value: float, policy: str = "LRU") -> dict[str, Any]:
    return {
        "id": id, "kind": "hit_rate", "metric": metric, "metric_id": "hit_share", "value_si": value,
        "checkable": ["hit_rate"], "workload": {"block_size": 8, "other": {"trace": trace, "policy": policy}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def sharegpt(shared: Path) -> Any:
    from kvsim.trace.loading import load

    return load(shared / "traces" / "lengths_sharegpt_val_10k_llama2.csv.gz", untimed="poisson:1")


@pytest.mark.shared
def test_the_paged_attention_papers_order_and_size(sharegpt: Any) -> None:
    """Figure 2: 20.4, 26.8, 38.2 and 96.3 % of KV memory hold tokens. Its trace and rate are unknown, its lengths come
    from another tokenizer, and in its runs the queue was not always full: a seventh is allowed."""
    from kvsim.validate.fragmentation import REQUESTS, lengths

    requests = lengths(sharegpt, 2048)[:REQUESTS]
    systems = {"Orca (Max)": 0.204, "Orca (Pow2)": 0.268, "Orca (Oracle)": 0.382, "vLLM": 0.963}
    usages = {system: saturated(layout(system, SLOTS, 2048), requests) for system in systems}
    used = [usage.used_share for usage in usages.values()]
    assert used == sorted(used)
    for system, published in systems.items():
        assert usages[system].used_share == pytest.approx(published, rel=1 / 7), system
    assert usages["Orca (Max)"].batched_requests == pytest.approx(7.0, rel=0.01)


@pytest.mark.shared
def test_published_cases(shared: Path, sharegpt: Any) -> None:
    report = validate_fragmentation(shared / "measured" / "cases.jsonl", sharegpt)
    assert len(report.rows) >= 10
    assert not report.missed()
    assert max(abs(row.error) for row in report.rows) < 0.25


@pytest.mark.shared
def test_commands(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases, traces = str(shared / "measured" / "cases.jsonl"), shared / "traces"
    assert cli.main(["validate", "hit-rate", cases, str(traces / "mooncake_conversation.jsonl.gz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rung"] == "hit_rate" and found["cases"] == 1
    lengths = str(traces / "lengths_sharegpt_val_10k_llama2.csv.gz")
    assert cli.main(["validate", "fragmentation", cases, lengths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["used_share"]["max_abs"] < 0.15
