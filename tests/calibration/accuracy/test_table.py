"""The table that kvsim ships, and where it is shown."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from kvsim_calibration.accuracy import policies
from kvsim_calibration.accuracy.items import FULL
from kvsim_calibration.accuracy.policies import FULL_CACHE

from kvsim.accuracy import accuracy_table, in_basis, lossy, measured, streams
from kvsim.cache.policies import POLICIES
from kvsim.cli import main
from kvsim.report.quality import change


def test_the_shipped_table_covers_the_policies_and_says_what_it_is() -> None:
    table = accuracy_table()
    rows = {row["policy"]: row for row in table["results"]}
    assert list(rows) == ["bf16", *(policy.name for policy in policies.defaults(FULL.context))]
    assert table["prompt_tokens"] + table["decoded_tokens"] == FULL.context and table["chunks"] == FULL.chunks
    assert "SmolLM2-135M" in table["model"] and "sha256" in table["text"]
    for name, row in rows.items():
        low, high = row["perplexity_change_interval"]
        assert low <= row["perplexity_change"] <= high
        assert row["perplexity"] == pytest.approx(rows["bf16"]["perplexity"] * (1 + row["perplexity_change"]), rel=1e-9)
        assert row["needle"]["asked"] == 5 * FULL.needles == sum(depth["asked"] for depth in row["needle"]["by_depth"])
        (policy,) = policies.parse(name) or [FULL_CACHE]
        assert row["share"] * 23040 == pytest.approx(row["bytes_per_token"]) == pytest.approx(
            policy.kept(FULL.prompt, FULL.steps) * policy.token_bytes(30, 3, 64))
    assert {row["system"] for row in table["published"]} == {"KIVI", "LMDeploy", "vLLM"}
    assert all(row["source"] for row in table["published"])


def test_goals_that_the_shipped_table_reaches() -> None:
    rows = {row["policy"]: row for row in accuracy_table()["results"]}
    for precision in ("int8", "fp8-head-basis"):
        assert max(map(abs, rows[precision]["perplexity_change_interval"])) < 0.005
    for budget in (1024, 512):  # without sinks it falls apart (StreamingLLM's finding)
        sinks = rows[f"window:sinks=4,recent={budget - 4}"]["perplexity_change_interval"]
        assert rows[f"window:sinks=0,recent={budget}"]["perplexity_change_interval"][0] > 5 * sinks[1]
    for budget in (1024, 512, 256):  # H2O against a window of equal budget; at an eighth perplexities differ by chance
        heavy = rows[f"heavy_hitter:budget={budget},recent={budget // 2}"]
        window = rows[f"window:sinks=4,recent={budget - 4}"]
        assert heavy["kl"] < window["kl"]
        assert budget == 256 or heavy["perplexity_change"] < window["perplexity_change"]
    for precision in ("fp8-head", "int4"):  # the basis helps beyond chance
        basis = rows[f"{precision}-basis"]["perplexity_change_interval"]
        assert basis[1] < rows[precision]["perplexity_change_interval"][0]


def test_the_shipped_table_shows_windows_on_streams() -> None:
    table = accuracy_table()
    rows = table["streams"]
    assert [(row["text"], row["context"], row["budget"]) for row in rows] == [
        (text, context, context // 4) for text in ("Python's docs", "Newton's Opticks") for context in FULL.contexts
        for _ in range(2)
    ]  # fmt: skip
    assert [source.split()[0] for source in table["streamed"]] == ["pydoc_data.topics", "Newton's"]
    for plain, sinks in zip(rows[::2], rows[1::2], strict=True):
        assert plain["retention"].startswith("window:sinks=0") and sinks["retention"].startswith("window:sinks=4")
        assert plain["texts"] == sinks["texts"] >= FULL.streams
        assert plain["tokens_kept"] == sinks["tokens_kept"] == pytest.approx(0.2877, abs=1e-3)
        for row in (plain, sinks):
            low, high = row["perplexity_change_interval"]
            assert low <= row["perplexity_change"] <= high
            assert row["perplexity"] == pytest.approx(row["full_perplexity"] * (1 + row["perplexity_change"]))
            low, high = row["whole_change_interval"]
            assert low <= row["whole_change"] <= high
            assert row["whole_change"] < row["perplexity_change"]  # nothing is lost in the first quarter
        # StreamingLLM's finding: without sinks it falls apart, with them it does not
        assert plain["perplexity_change_interval"][0] > 3 * sinks["perplexity_change_interval"][1]


def test_a_policy_finds_its_lines() -> None:
    def lines(name: str, **axes: Any) -> list[str]:
        return [row["policy"] for row in measured(POLICIES.get(name).override(**axes).facts())]

    assert lines("paged-int8") == ["int8"] and lines("paged-fp8") == ["fp8"]
    assert lines("streaming") == [f"window:sinks=4,recent={n}" for n in (1020, 508, 252)]
    assert lines("streaming", precision="int8") == ["int8+window:sinks=4,recent=508"]
    assert lines("snapkv", precision="int4") == []
    assert {name: (in_basis(spec.facts()) or {"policy": None})["policy"] for name, spec in POLICIES.items()
            if lossy(spec.facts())} == {
        "paged-fp8": "fp8-head-basis", "paged-int8": None, "paged-int4": "int4-basis", "streaming": None, "h2o": None,
        "snapkv": None,
    }  # fmt: skip
    assert {row["context"] for row in streams(POLICIES.get("streaming").facts())} == {8192}
    assert streams(POLICIES.get("paged").facts()) == streams(POLICIES.get("h2o").facts()) == []
    assert [name for name, spec in POLICIES.items() if lossy(spec.facts())] == [
        "paged-fp8", "paged-int8", "paged-int4", "streaming", "h2o", "snapkv",
    ]


def test_list_and_compare_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "policies", "--accuracy"]) == 0
    shown = capsys.readouterr().out
    assert "4 sinks + 508" in shown and "no promise for others" in shown and "LMDeploy" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["list", "policies", "--accuracy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == accuracy_table()
    assert main(["list", "models", "--accuracy"]) == 2
    scenario = ["compare", "--trace", "sample", "--limit", "5", "--model", "llama-3.1-8b", "--device", "h100-sxm"]
    assert main([*scenario, "--policies", "paged,paged-int8"]) == 0
    shown = capsys.readouterr().out
    assert "no promise for your" in shown and shown.count("paged-int8") == 4
    assert main([*scenario, "--policies", "paged,paged-fp8,streaming"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    rows = {row["policy"]: row for row in accuracy_table()["results"]}
    for precision, said in (("fp8", "as servers store it"), ("fp8-head-basis", "keys in a basis fitted to the model")):
        assert change(rows[precision]["perplexity_change"]) in shown and said in shown
    for row in streams(POLICIES.get("streaming").facts()):
        assert f"{change(row['perplexity_change'])} [" in shown and "keeping 2,048 of 8,192 tokens of a stream" in shown
    assert main([*scenario, "--policies", "contiguous,paged"]) == 0
    assert "no promise" not in capsys.readouterr().out


def test_the_page_shows_the_shipped_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "accuracy.md"
    spec = importlib.util.spec_from_file_location("accuracy_page", page.with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.printed() in page.read_text(), "run: python docs/accuracy.py"
