"""The memory rung: what is used of a case, what is assumed, and the report's statistics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvsim import cli
from kvsim.commands.rung import answer
from kvsim.errors import InputError
from kvsim.validate.memory import validate_memory
from kvsim.validate.report import Goal, Report, Row, statistics

WORK: dict[str, Any] = {
    "max_model_len": 8192, "max_num_seqs": 256, "max_num_batched_tokens": 2048, "block_size": 16,
    "gpu_memory_utilization": 0.9, "total_gpu_memory_gib": 80.0,
}  # fmt: skip


def case(**changes: Any) -> dict[str, Any]:
    return {
        "id": "c", "kind": "memory", "model_id": "llama-3.1-8b", "engine_id": "vllm-1", "engine_version": "0.19.0",
        "weights_dtype": "bf16", "kv_dtype_id": "bf16", "tp": 1, "pp": 1, "ep": 1, "device_candidates": ["h100-sxm"],
        "metric_id": "kv_blocks", "value_si": 27_000, "value_si_min": 27_000.0, "value_si_max": 27_000.0,
        "checkable": ["memory"], "why_not": None, "workload": WORK,
    } | changes  # fmt: skip


def report(tmp_path: Path, *cases: dict[str, Any]) -> Report:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cases))
    return validate_memory(path)


def test_stated_parts_are_used(tmp_path: Path) -> None:
    parts = {**WORK, "weights_gib": 15.0, "non_torch_gib": 0.5, "activation_peak_gib": 1.5}
    (row,) = report(tmp_path, case(workload=parts)).rows
    assert (row.group, row.note) == ("stated", "")
    assert row.predicted == (72 - 15 - 0.5 - 1.5) * 2**30 // (16 * 128 * 1024)
    assert row.interval is not None
    half = (row.interval[1] - row.interval[0]) / 2
    assert 0 < half < 0.02 * row.predicted  # only the rounding of what was printed


def test_what_is_not_stated_is_ours_and_named(tmp_path: Path) -> None:
    (row,) = report(tmp_path, case()).rows
    assert (row.group, row.note) == ("assumed", "weights, activations, non-torch")
    (row,) = report(tmp_path, case(workload={**WORK, "total_gpu_memory_gib": None},
                                   device_candidates=["a100-80-sxm", "h100-sxm"])).rows  # fmt: skip
    assert row.note == "all parts; mean of 2 devices"


def test_candidates_that_could_not_have_started_are_left_out(tmp_path: Path) -> None:
    work = {**WORK, "total_gpu_memory_gib": None}
    both, large = (report(tmp_path, case(workload=work, model_id="llama-2-13b", device_candidates=names)).rows[0]
                   for names in (["l4", "l40s"], ["l40s"]))  # fmt: skip
    assert both.predicted == large.predicted > 0


def test_a_pool_that_we_deny_is_an_error_not_a_skip(tmp_path: Path) -> None:
    found = report(tmp_path, case(model_id="llama-3.1-70b"))
    assert [row.error for row in found.rows] == [-1]
    assert found.skipped == {}


def test_a_stated_pool_needs_nothing_else(tmp_path: Path) -> None:
    work = {"available_kv_gib": 26.43, "max_model_len": 8192}
    (row,) = report(tmp_path, case(metric_id="kv_tokens", value_si=216_496, workload=work, device_candidates=[])).rows
    assert row.group == "stated"
    assert row.predicted == pytest.approx(216_496, rel=2e-4)


def test_bytes_and_weights(tmp_path: Path) -> None:
    rows = report(
        tmp_path,
        case(metric_id="kv_bytes_per_token", value_si=131_072),
        case(metric_id="kv_bytes_per_block", value_si=2_097_152),
        case(metric_id="kv_bytes", value_si=131_072 * 1000, workload={"input_len": 1000}),
        case(metric_id="weights_bytes", value_si=14.9888 * 2**30),
    ).rows
    assert [row.group for row in rows] == ["bytes", "bytes", "bytes", "weights"]
    assert [row.error for row in rows[:3]] == [0, 0, 0]
    assert abs(rows[3].error) < 1e-5  # with the rotary table


def test_cases_are_counted_or_skipped_with_a_reason(tmp_path: Path) -> None:
    found = report(
        tmp_path, case(), case(model_id="unheard-of"), case(checkable=[], why_not="a ratio"), case(metric_id="ratio"),
        case(device_candidates=[], workload={**WORK, "total_gpu_memory_gib": None}), case(kind="latency"),
    )  # fmt: skip
    assert len(found.rows) + sum(found.skipped.values()) == 5
    assert any("unheard-of" in reason for reason in found.skipped)
    assert "not checkable: a ratio" in found.skipped


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not a case"),
        ('{"id": "x"}', "line 1 is not a case"),
        ('\n{"kind": "memory"}', "line 2 is not a case: it lacks checkable, id"),
    ],
)
def test_files_that_are_no_cases(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        validate_memory(path)
    with pytest.raises(InputError, match="no such file"):
        validate_memory(tmp_path / "missing")


def test_statistics() -> None:
    rows = [Row(str(i), "g", "m", 100 + e, 100, (100 + e - 3, 100 + e + 3)) for i, e in enumerate((-4, 1, 2))]
    found = statistics(rows)
    assert found["cases"] == 3
    assert found["median_abs"] == pytest.approx(0.02)
    assert found["bias"] == pytest.approx(0.01)
    assert found["coverage90"] == pytest.approx(2 / 3)
    assert statistics([])["median_abs"] is None
    missed = Report("r", rows, goals=(Goal("g", "max_abs", 0.05), Goal("", "median_abs", 0.01))).missed()
    assert missed == ["all: median_abs ≤ 0.01, reached 0.02"]


def test_names_give_way_in_80_columns_and_numbers_never(capsys: pytest.CaptureFixture[str]) -> None:
    name = "vllm-0.19/llama-3.1-8b-instruct/rtx-pro-6000/tp2-dp2/time-to-first-token"
    rows = [Row(name, name, "output_tokens_per_s", 0.0312345, 0.0345678, (0.03, 0.04), f"whole prompts {name}"),
            Row("x", "", "ttft", 1_234_567.0, 2e10)]  # fmt: skip
    goals = (Goal("", "median_abs", 0.99), Goal("", "p95_abs", 0.01), Goal("other", "median_abs", 0.1))
    assert answer(Report("serving", rows, goals=goals), as_json=False) == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and "…" not in out
    for number in ("0.03123", "0.03457", "-9.64 %", "1,234,567", "20 G", "-99.99 %", "9.64 %", "100.00 %"):
        assert re.search(rf"(^| ){re.escape(number)}( |$)", out, re.MULTILINE), number
    assert re.findall(r"^(met|missed|no case) ", out, re.MULTILINE) == ["met", "missed", "no case"]


def test_command_exits_1_past_the_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.jsonl"
    wrong = case(metric_id="kv_bytes_per_token", value_si=100_000, value_si_min=99_999, value_si_max=100_001)
    path.write_text(json.dumps(wrong))
    assert cli.main(["validate", "memory", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["missed"]
    assert set(found) >= {"rung", "cases", "median_abs", "p90_abs", "p95_abs", "bias", "coverage90", "groups", "rows",
                          "skipped"}  # fmt: skip
    assert set(found["rows"][0]) >= {"id", "metric", "predicted", "true", "error", "interval"}


@pytest.mark.shared
def test_published_start_ups(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goals of the memory rung on the published development cases."""
    cases = shared / "measured" / "cases.jsonl"
    found = validate_memory(cases)
    assert found.missed() == []
    assert sum(found.skipped.values()) == 5  # those that the file itself calls not checkable
    by_group = found.groups()
    assert by_group["stated"]["max_abs"] <= 0.01
    assert by_group["assumed"]["max_abs"] <= 0.08
    assert all(row.inside for row in found.rows if row.group == "bytes")
    exact = {row.id: row for row in found.rows}
    for name in ("mem-005", "mem-007"):  # every part is printed to four digits, or comes out even
        assert abs(exact[name].predicted - exact[name].true) <= 1
    assert cli.main(["validate", "memory", str(cases)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
