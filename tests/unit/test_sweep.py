"""Sweeps: grids, what is kept, kills, resuming, and the same bytes whoever ran it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from kvsim.cli import main
from kvsim.errors import InputError
from kvsim.simulate import run
from kvsim.sweep import Store, read_sweep, sweep
from kvsim.workers import InProcess, Local

SWEEP = """
[base]
trace = "synth:chat?requests=40&rate=5"
model = "llama-3.2-1b"
device = "l4"
[grid]
policy = ["paged", "paged-prefix"]
rate_scale = [1, 4]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "chat.toml"
    file.write_text(SWEEP)
    return file


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "runs").iterdir()}


def test_grid_and_list(file: Path) -> None:
    file.write_text(SWEEP + '[[list]]\nmax_num_seqs = 8\n[[list]]\nmax_num_seqs = 16\ndevice = "a10"\n')
    scenarios = read_sweep(file)
    assert len(scenarios) == 8
    assert {(s.max_num_seqs, s.device) for s in scenarios} == {(8, "l4"), (16, "a10")}
    assert not any(s.interval for s in scenarios)
    lines = ["[base]", "trace='t'", "model='m'", *(f"[[list]]\ndevice='{name}'" for name in "aba")]
    file.write_text("\n".join(lines))
    assert [s.device for s in read_sweep(file)] == ["a", "b"]


@pytest.mark.parametrize(("text", "says"), [
    ("[bas]\n", "did you mean base"), ("x = [", "not TOML"), ("[grid]\npolicy = 'paged'\n", "list of values"),
    ("[base]\nmodel='m'\ndevice='d'\ntrace='t'\n[grid]\ntpp=[1]\n", "grid.tpp"), ("base = 1\n", r"\[base\]"),
    ("list = 3\n", r"\[\[list\]\]"), ("[base]\ntrace='t'\nmodel='m'\ndevice='d'\nrate=-1\n", "base.rate is -1"),
])
def test_bad_files_are_explained(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_sweep(file)
    with pytest.raises(InputError, match="No such file"):
        read_sweep(file.with_name("nothing.toml"))


def test_the_same_bytes_for_any_number_of_workers(file: Path, tmp_path: Path) -> None:
    scenarios = read_sweep(file)
    for name, executor in (("here", InProcess()), ("one", Local(1)), ("three", Local(3))):
        order = scenarios[::-1] if name == "three" else scenarios
        assert sweep(order, Store(tmp_path / name), executor=executor).failed == {}
    assert content(tmp_path / "here") == content(tmp_path / "one") == content(tmp_path / "three")
    table = Store(tmp_path / "here").table()
    assert isinstance(table, pl.LazyFrame)
    rows = table.collect()
    assert rows.height == 4 and set(rows["key"]) == {s.key for s in scenarios}
    truth = run(scenarios[0]).summary
    mine = rows.filter(pl.col("key") == scenarios[0].key).row(0, named=True)
    assert json.loads(mine["summary"]) == json.loads(json.dumps(truth))
    assert mine["ttft_p99"] == truth["latency_s"]["ttft"]["p99"] and mine["policy"] == "paged"


def test_resume_runs_what_is_missing_or_failed(file: Path, tmp_path: Path) -> None:
    store, scenarios = Store(tmp_path / "out"), read_sweep(file)
    bad = scenarios[0].replace(model="no-such-model")
    assert sweep([*scenarios[:2], bad], store, executor=InProcess()).failed.keys() == {bad.key}
    assert store.keys("failed") == {bad.key} and len(store.keys("done")) == 2
    with pytest.raises(InputError, match="--resume"):
        sweep(scenarios, store, executor=InProcess())
    before = content(tmp_path / "out")
    again = sweep([*scenarios, bad], store, resume=True, executor=InProcess())
    assert (again.scenarios, again.ran) == (5, 3)
    assert before.items() <= content(tmp_path / "out").items()
    assert "no-such-model" in store.table().filter(pl.col("status") == "failed").collect()["error"][0]


def test_kill_9_loses_nothing_and_doubles_nothing(file: Path, tmp_path: Path) -> None:
    file.write_text(SWEEP.replace("[1, 4]", str([1 + i / 10 for i in range(15)])))
    out = tmp_path / "chat"
    command = [sys.executable, "-m", "kvsim", "sweep", str(file), "--jobs", "2"]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(out.glob("runs/*.parquet"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = content(out)
    whole = {name: data for name, data in done.items() if not name.startswith(".")}
    assert 4 <= len(whole) < 30
    assert len(Store(out).table().collect()) == len(whole)  # every file is whole
    assert main(["sweep", str(file), "--resume", "--jobs", "2"]) == 0
    rows = Store(out).table().collect()
    assert rows.height == 30 and rows["key"].n_unique() == 30 and set(rows["status"]) == {"done"}
    assert whole.items() <= content(out).items()


def test_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(SWEEP.replace('"paged-prefix"', '"nonsense"'))
    assert main(["sweep", str(file), "--json", "--jobs", "1"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["scenarios"], found["ran"], len(found["failed"])) == (4, 4, 2)
    folder, page = str(tmp_path / "chat"), tmp_path / "page.html"
    assert main(["sweep", "show", folder, "--by", "ttft_p99", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "2 runs done, 2 failed" in out and max(map(len, out.splitlines())) <= 80
    assert "<svg" in page.read_text() and "nonsense" in page.read_text()
    assert main(["sweep", "show", folder, "--json", "--top", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 1
    for wrong in (["show"], ["show", folder, "--by", "tftt"], [str(file), folder], ["show", str(tmp_path)],
                  [str(file), "--address", "auto"], [str(file)]):
        assert main(["sweep", *wrong]) == 2, wrong
