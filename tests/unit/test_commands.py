"""simulate and compare: flags to scenario, result to output. The simulator itself is stood in for by `fake_result`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import fake_result

from kvsim import cli
from kvsim.result import Result
from kvsim.scenario import Scenario, fields, flag

WHAT = ["--trace", "sample", "--model", "llama-3.1-8b", "--device", "h100-sxm"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Replaces the simulator; the list fills with the scenarios it was asked for."""
    seen: list[Scenario] = []

    def run(scenario: Scenario, progress: Any = None, trace: Any = None) -> Result:
        seen.append(scenario)
        if progress:
            progress(1, 2)
        return fake_result(100, len(seen), scenario.policy or "paged")

    simulator = SimpleNamespace(run=run, trace_of=lambda scenario: [], check=id)
    monkeypatch.setitem(sys.modules, "kvsim.simulate", simulator)
    return seen


def test_simulate_json_is_one_object(asked: list[Scenario], capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--policy", "buddy", "--tp", "2", "--rate", "3", "--no-interval", "--json"]
    assert cli.main(["simulate", *WHAT, *flags]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == 1
    assert err == ""
    assert asked == [
        Scenario(trace="sample", model="llama-3.1-8b", device="h100-sxm", policy="buddy", tp=2, rate=3, interval=False)
    ]


def test_simulate_table_and_folder(asked: list[Scenario], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "r"), "--html", str(tmp_path / "r.html")]
    assert cli.main(["simulate", *WHAT, *files, "--slo", "ttft=2s,tpot=5ms"]) == 0
    assert "<svg" in (tmp_path / "r.html").read_text()
    out = capsys.readouterr().out
    for words in ("Datasheet only", "TTFT", "KV cache", "Goodput"):
        assert words in out
    assert Result.load(tmp_path / "r").summary["requests"]["total"] == 100


def test_compare_policies(asked: list[Scenario], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, out = tmp_path / "r.html", tmp_path / "out"
    common = ["compare", *WHAT, "--policies", "contiguous, paged", "--html", str(page), "--out", str(out)]
    assert cli.main(common) == 0
    assert "★" in capsys.readouterr().out
    assert "<svg" in page.read_text()
    assert [scenario.policy for scenario in asked] == ["contiguous", "paged"]
    assert cli.main([*common, "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["runs"]) == ["contiguous", "paged"]
    assert cli.main(["compare", str(out / "contiguous"), str(out / "paged")]) == 0
    assert "change" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["simulate", *WHAT[:4]], "--device is missing"),
        (["simulate", *WHAT, "--rate", "0"], "--rate is '0'; it must be greater than 0"),
        (["simulate", *WHAT, "--slo", "tfft=1s"], "--slo: unknown metric 'tfft': did you mean ttft or"),
        (["simulate", *WHAT, "--slo", "ttft"], "write metric=limit"),
        (["simulate", *WHAT, "--slo", "ttft=fast"], "--slo ttft: duration 'fast'"),
        (["compare", *WHAT, "--policies", "paged,paged"], "must name each policy once"),
        (["compare", *WHAT, "--policies", ","], "must name each policy once"),
        (["compare", "/nowhere"], "nothing to compare"),
        (["compare", "/nowhere", "/nowhere/"], "named twice"),
        (["compare", "/nowhere", "/neither"], "no Result folder"),
        (["compare", "/nowhere", "/neither", "--policies", "paged"], "--policies says what to simulate"),
        (["compare", "/nowhere", "/neither", "--trace", "sample"], "--trace says what to simulate"),
        (["compare", "/nowhere", "/neither", "--set", "tp=2"], "--set says what to simulate"),
        (["simulate", *WHAT, "--scenario", "/no.toml"], "--scenario /no.toml: no such file"),
    ],
)
def test_bad_input(
    asked: list[Scenario], capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    assert cli.main(args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert asked == []


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_help_shows_every_flag_and_an_example(command: str, capsys: pytest.CaptureFixture[str], asked: Any) -> None:
    assert cli.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"kvsim {command} --trace" in text.replace("Usage", "")
    for name in fields():
        if (command, name) != ("compare", "policy"):
            assert flag(name) in text, name
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_a_long_comparison_runs_in_worker_processes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same numbers as one after the other in this process."""
    rows = "".join(f"{i / 20},{i % 90 + 10},{i % 7 + 1}\n" for i in range(3000))
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    common = ["--trace", str(tmp_path / "t.csv"), *WHAT[2:], "--no-interval", "--json"]
    assert cli.main(["compare", *common, "--policies", "paged,contiguous"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert list(runs) == ["paged", "contiguous"]
    for policy, summary in runs.items():
        assert cli.main(["simulate", *common, "--policy", policy]) == 0
        assert json.loads(capsys.readouterr().out) == summary
