"""Benchmarks without a GPU: tiny points on the CPU runner, the record, the table, the commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from kvsim_kernels.__main__ import main
from kvsim_kernels.commands import gpu
from kvsim_kernels.speed import run as runner
from kvsim_kernels.speed.points import Launch, Point, Subject, points
from kvsim_kernels.speed.record import Record
from kvsim_kernels.speed.timing import Timing, summary

CPU = torch.device("cpu")
ABOUT = {"gpu": "none", "l2_bytes": 0}


def stopwatch(launches: Sequence[Launch]) -> Timing:
    """Runs each launch, and says that it took 1, 2, … microseconds."""
    for launch in launches:
        launch()
    return summary([1e3 * (i + 1) for i in range(5)], len(launches))


@pytest.mark.parametrize("point", list(points(tiny=True)), ids=lambda point: f"{point.kernel}: {point.case}")
def test_every_point_computes_what_it_claims(point: Point) -> None:
    row = runner.measured(point, CPU, stopwatch, l2_bytes=0)
    assert row["ok"], row["error"]
    assert row["median_ns"] == 3000 and row["p20_ns"] == pytest.approx(1800) and row["sets"] == 1
    assert [name for name, ns in row["rivals_ns"].items() if ns != 3000] == []


def test_the_tiny_points_cover_every_kernel_of_the_full_ones() -> None:
    full, tiny = list(points()), list(points(tiny=True))
    assert {point.kernel for point in full} == {point.kernel for point in tiny}
    names = [(point.kernel, point.case) for point in full]
    assert len(set(names)) == len(names)


def test_bytes_and_flops_by_hand() -> None:
    found = {(point.kernel, point.case): point for point in points()}
    decode = found["decode tensor-cores", "bf16, blocks of 16, 64 x 8192 tokens, 32/8 heads of 128"]
    assert decode.bytes == 64 * 8192 * 8 * 128 * 2 * 2 + 2 * 64 * 32 * 128 * 2
    int8 = found["decode tensor-cores", "int8, blocks of 16, 64 x 8192 tokens, 32/8 heads of 128"]
    assert int8.bytes == 64 * 8192 * 8 * 2 * (128 + 2) + 2 * 64 * 32 * 128 * 2
    prefill = found["prefill flash", "bf16, contiguous, 1 x 4096 of 4096 tokens, 32/8 heads of 128"]
    assert prefill.flops == 4 * 32 * 128 * 4096 * 4097 // 2


def point(kernel: str = "k", case: str = "c", bound: float = 0.0, footprint: int = 10, error: float = 0.0) -> Point:
    return Point(
        kernel, case, "read", bound, 3000, 0, footprint, lambda device, seed: Subject(lambda: None, lambda: error)
    )


def test_buffers_take_turns_until_they_are_five_times_the_cache() -> None:
    assert runner.sets(point(footprint=100), l2_bytes=50) == 3
    assert runner.sets(point(footprint=1000), l2_bytes=50) == 1
    assert runner.sets(point(footprint=0), l2_bytes=50) == 250
    assert runner.sets(point(footprint=1), l2_bytes=5000) == runner.MOST_SETS
    assert runner.measured(point(footprint=100), CPU, stopwatch, 50)["cold"]
    assert not runner.measured(point(footprint=1), CPU, stopwatch, 5000)["cold"]


def test_a_run_that_is_cut_short_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "bench.jsonl"
    record, told = Record(path, ABOUT), []
    chosen = [point(case="a"), point(case="b"), point(case="c")]
    assert runner.run(chosen, CPU, record, stopwatch, 0, seconds=-1, tell=told.append) == 3
    assert not path.exists()
    assert runner.run(chosen[:2], CPU, record, stopwatch, 0, seconds=60, tell=told.append) == 0
    with path.open("a") as file:
        file.write('{"environment": "cut of')  # killed while it wrote
    again = Record(path, ABOUT)
    assert [case for _, case in again.rows()] == ["a", "b"]
    told.clear()
    assert runner.run(chosen, CPU, again, stopwatch, 0, seconds=60, tell=told.append) == 0
    assert told == ["k, c: 3.0 us"]
    assert [case for _, case in again.rows()] == ["a", "b", "c"]
    assert Record(path, ABOUT | {"gpu": "another"}).rows() == {}


def test_a_wrong_result_and_a_rival_that_fails_are_said(tmp_path: Path) -> None:
    def broken() -> Launch:
        raise RuntimeError("no kernel image\nand more")

    wrong = Point("k", "c", "read", 0.1, 3000, 0, 10, lambda *_: Subject(lambda: None, lambda: 0.2, {"x": broken}))
    told: list[str] = []
    record = Record(tmp_path / "b.jsonl", ABOUT)
    runner.run([wrong, point("ceiling read", "")], CPU, record, stopwatch, 0, 60, told.append)
    assert told[0] == "k, c: 3.0 us, WRONG RESULT"
    rows = runner.shares(record.rows().values())
    text = runner.markdown(runner.table(rows))
    assert "| k | c | 3.00 (1.80 - 4.20) | 1 | 0.0 | 100% | x failed: no kernel image | 2.0e-01 WRONG |" in text


def test_what_does_not_fit_the_memory_is_passed_over(tmp_path: Path) -> None:
    def make(device: torch.device, seed: int) -> Subject:
        raise torch.OutOfMemoryError

    told: list[str] = []
    record = Record(tmp_path / "b.jsonl", ABOUT)
    assert runner.run([Point("k", "c", None, 0, 1, 0, 1, make)], CPU, record, stopwatch, 0, 60, told.append) == 0
    assert told == ["k, c: does not fit this device's memory"]
    assert [(row["ok"], "median_ns" in row) for row in record.rows().values()] == [(True, False)]
    assert runner.run([Point("k", "c", None, 0, 1, 0, 1, make)], CPU, record, stopwatch, 0, 60, told.append) == 0
    assert len(told) == 1  # known
    record.again()
    assert record.rows() == {}


def test_a_point_that_fails_is_a_row_and_the_others_go_on(tmp_path: Path) -> None:
    def make(device: torch.device, seed: int) -> Subject:
        raise RuntimeError("CUDA error: invalid\nargument")

    told: list[str] = []
    record = Record(tmp_path / "b.jsonl", ABOUT)
    broken = Point("k", "broken", None, 0, 1, 0, 1, make)
    assert runner.run([broken, point("ceiling read", "")], CPU, record, stopwatch, 0, 60, told.append) == 0
    assert told == ["k, broken: RuntimeError: CUDA error: invalid argument", "ceiling read, : 3.0 us"]
    rows = runner.shares(record.rows().values())
    assert [row["ok"] for row in rows] == [False, True]
    text = runner.report({"gpu": "none"}, rows)
    assert "- gpu: none\n" in text and "| k | broken | RuntimeError: CUDA error: invalid argument | " in text


def test_an_attempt_that_hangs_ends_the_process() -> None:
    script = """
import time, torch
from kvsim_kernels.speed import attempt
device = torch.device("cuda", 0)
attempt.grace(device, 1)
attempt.grace(device, 0)
time.sleep(1.2)
print("alive", flush=True)
attempt.SECONDS = 1
attempt.attempt("k", "c", lambda: time.sleep(60), device)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, "alive\n")


def test_what_ended_the_process_twice_is_not_tried_a_third_time(tmp_path: Path) -> None:
    record = Record(tmp_path / "b.jsonl", ABOUT)
    record.begin("k", "c")  # and no row: the process died
    assert record.rows() == {}
    record.begin("k", "c")
    (row,) = Record(record.path, ABOUT).rows().values()
    assert not row["ok"] and row["failed"] == "ended or hung the process twice"
    record.again()
    assert record.rows() == {}
    record.begin("k", "c")
    record.add({"kernel": "k", "case": "c", "ok": True})
    assert record.rows()["k", "c"]["ok"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize("command", ["bench", "gpu"])
def test_without_a_gpu_one_sentence_and_exit_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: timing kernels needs an NVIDIA GPU") and err.count("\n") == 1


def test_what_calibrating_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "polars.py").write_text("raise ModuleNotFoundError(\"No module named 'polars'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gpu.lacking() == "ModuleNotFoundError: No module named 'polars'"


def test_every_row_is_json(tmp_path: Path) -> None:
    record = Record(tmp_path / "b.jsonl", ABOUT)
    runner.run([point(error=float("nan"))], CPU, record, stopwatch, 0, 60, lambda line: None)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in record.path.read_text().splitlines()]
    assert lines[0]["gpu"] == "none" and lines[1]["begun"] == "k"
    assert lines[2]["error"] is None and not lines[2]["ok"]
