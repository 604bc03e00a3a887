"""`kvsim calibrate` measures this machine: a run that is killed, the profile that comes out, what is refused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from kvsim_calibration.backends import clock
from kvsim_calibration.backends.grid import Size, cases
from kvsim_calibration.backends.store import Store
from kvsim_calibration.backends.torchrun import TorchRun

from kvsim.cli import main
from kvsim.device import load_device
from kvsim.model import load_model


@pytest.mark.parametrize(("options", "says"), [
    (["--out", "x.json", "--device", "cuda:7"], "--device cuda:7 can't be used"),
    (["--out", "x.json", "--device", "toaster"], "--device toaster can't be used"),
    (["--out", "x.json", "--device", "cpu", "--backend", "cuda"], "needs an NVIDIA GPU"),
    (["--out", "x.json", "--device", "cpu", "--backend", "torhc"], "did you mean torch"),
    (["--out", "x.json", "--device", "cpu", "--models", "lama-3.1-8b"], "did you mean"),
    (["--out", "x.json", "--device", "cpu", "--dtypes", "fp3"], "unknown dtype 'fp3'"),
    (["--out", "x.json", "--budget", "soon"], "duration 'soon'"),
    (["--out", "x.toml", "--device", "cpu"], "ends in .json"),
    (["--device", "cpu"], "--out FILE.json"),
    (["fit", "nowhere.jsonl", "--out", "x.json"], "no such file of raw rows"),
])
def test_what_cannot_be_measured_is_one_sentence(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *options]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_without_torch_the_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    assert main(["calibrate", "--device", "cpu", "--out", str(tmp_path / "x.json")]) == 2
    assert "needs torch: pip install 'kvsim[calibrate]'" in capsys.readouterr().err


def arguments(config: Path, out: Path, *more: str) -> list[str]:
    return ["calibrate", "--device", "cpu", "--threads", "1", "--models", str(config), "--max-batch", "2",
            "--max-context", "32", "--max-chunk", "8", "--dtypes", "fp32", "--out", str(out), *more]


def test_rows_of_an_earlier_run_are_not_added_to_unasked(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.rows.jsonl").write_text('{"format": 1, "machine": {"name": "a"}}\n{"case": "a", "visit": 0}\n')
    assert main(arguments(config, tmp_path / "x.json")) == 2
    assert "--resume" in capsys.readouterr().err


def test_more_threads_than_cores_are_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(config, tmp_path / "many.json", "--threads", "100000")) == 2
    assert "--threads is 100000" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_killed_at_a_random_moment_ends_with_the_same_rows(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    out = tmp_path / "killed.json"
    raw = tmp_path / "killed.rows.jsonl"
    code = ("import sys; from kvsim.cli import main; from kvsim_calibration.backends import clock; "
            "clock.SECONDS = 0.0; sys.exit(main(sys.argv[1:]))")
    command = [sys.executable, "-c", code, *arguments(config, out, "--budget", "100s")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = random.randint(2, 60)  # of several hundred
    while process.poll() is None and (not raw.exists() or raw.read_bytes().count(b"\n") < lines):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = raw.read_bytes()
    assert not out.exists()
    assert main(arguments(config, out, "--budget", "100s", "--resume")) == 0
    assert raw.read_bytes().startswith(before)
    size = Size(2, 32, 8, 1 << 30, ("fp32",), copies=1 << 27)
    wanted = {(case.name, visit) for case in cases([load_model(config)], size) for visit in range(TorchRun.visits)}
    rows = Store(raw).rows
    assert len(rows) == len(wanted) and {(row["case"], row["visit"]) for row in rows} == wanted
    assert load_device(out).tier == "measured"


@pytest.mark.parametrize(("flags", "says"), [
    (["--dtypes", ""], "names nothing"), (["--models", ","], "names nothing"),
    (["--max-context", "99999999999"], "tokens at most"),
])
def test_options_that_say_nothing_or_too_much(flags: list[str], says: str, tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--device", "cpu", "--out", str(tmp_path / "a.json"), *flags]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", [
    ["validate", "step", "--device", "cpu", "--profile", "h100-sxm"],
    ["calibrate", "generation", "h100-sxm", "--device", "cpu"],
])
def test_another_devices_profile_is_no_truth_for_this_one(command: list[str],
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert "is no profile of cpu" in " ".join(capsys.readouterr().err.split())
