"""The whole way to a GPU without one: real cuda.core on a fake driver, fake torch.cuda, kernels on the CPU runner.

What it proves: arguments as cuda.core packs them, symbols, shared memory on request, streams, contexts of threads,
capture and replay, and each stage of `make gpu`. What it can't: the machine code, and that the fakes are right.
Processes of their own, since the fakes last as long as a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvsim_kernels.host import compiler

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parent / "fake_gpu"


@pytest.fixture(scope="session")
def fake_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which a Python process has the fake GPU."""
    folder = tmp_path_factory.mktemp("driver")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler()[0], *flags, FAKE / "libcuda.cpp", "-o", folder / "libcuda.so.1", "-ldl"], check=True)
    paths = [FAKE, ROOT, ROOT / "kernels", ROOT / "calibration"]
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths))}


def python(fake_gpu: dict[str, str], *words: str, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, env=fake_gpu, capture_output=True, text=True, check=False, timeout=timeout)


def said(fake_gpu: dict[str, str], script: str) -> str:
    done = python(fake_gpu, "-c", script)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


START = """
import threading, torch
from kvsim_kernels import decode_attention
from kvsim_kernels.decode import default_splits, workspace_size
from kvsim_kernels.grid.decode import inputs, relative_error
from kvsim_kernels.reference.decode import decode_attention as reference
import torch_cuda
given = inputs([0, 40, 17], 2, 4, 64, block_size=16, device="cuda")
want = reference(given.q, given.cache, given.lengths, given.block_table)
out, workspace = torch.empty_like(given.q), torch.empty(10_000, device="cuda")
def attend(**options):
    decode_attention(given.q, given.cache, given.lengths, block_table=given.block_table, splits=2, **options)
def error():
    return relative_error(out, want)
"""


def test_a_captured_launch_runs_when_it_is_replayed(fake_gpu: dict[str, str]) -> None:
    """Nothing is allocated, loaded or waited for in the capture (the fakes raise); arguments are kept by value."""
    script = START + """
attend(out=out, workspace=workspace)
assert error() < 5e-3
graph = torch.cuda.CUDAGraph()
out.fill_(torch.nan)
with torch.cuda.graph(graph):
    before = len(graph.kept)
    attend(out=out, workspace=workspace)
    views = [tensor for tensor in graph.kept[before:] if isinstance(tensor, torch.Tensor)]
    assert all(tensor.untyped_storage().data_ptr() == workspace.untyped_storage().data_ptr() for tensor in views)
    try:
        attend()
    except ValueError as refused:
        print(refused)
assert out.isnan().all() and len(graph.launches) == 2
graph.replay()
assert error() < 5e-3
"""
    assert said(fake_gpu, script).startswith("give `out` and `workspace` while a CUDA graph is captured")


def test_a_first_launch_inside_a_capture_is_an_error_not_a_wrong_result(fake_gpu: dict[str, str]) -> None:
    script = START + """
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        attend(out=out, workspace=workspace)
except Exception as refused:
    print(type(refused).__name__, refused)
"""
    assert "capturing" in said(fake_gpu, script)


def test_a_thread_that_has_not_used_the_gpu_before_can_launch(fake_gpu: dict[str, str]) -> None:
    """The driver wants a context on each thread; torch makes one current only where it runs something itself."""
    script = START + """
def work():
    with torch_cuda.OnGpu():
        attend(out=out, workspace=workspace, check_contents=False)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(error() < 5e-3)
"""
    assert said(fake_gpu, script) == "True"


def test_mixed_devices_are_refused_in_words(fake_gpu: dict[str, str]) -> None:
    script = START + """
given.lengths = given.lengths.cpu()
try:
    attend()
except ValueError as refused:
    print(refused)
"""
    assert said(fake_gpu, script) == "lengths is on cpu, the other tensors are on cuda:0"


def rows(path: Path) -> list[dict[str, object]]:
    return [row for line in path.read_text().splitlines() if "kernel" in (row := json.loads(line))]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_make_gpu(fake_gpu: dict[str, str], tmp_path: Path) -> None:
    """Every stage from compiler to profile, and again: nothing is measured twice."""
    out = tmp_path / "gpu"
    command = ["-m", "kvsim_kernels", "gpu", "--tiny", "--minutes", "20", "--out", str(out)]
    done = python(fake_gpu, *command, timeout=1300)
    assert done.returncode == 0, done.stderr[-6000:]
    checked, timed = rows(out / "check.jsonl"), rows(out / "bench.jsonl")
    assert len(checked) > 15 and all(row["ok"] for row in checked)
    assert len(timed) > 20 and all(row["ok"] and "median_ns" in row for row in timed)
    assert {"kv_copy", "decode uncached", "ceiling link"} <= {str(row["kernel"]) for row in timed}
    assert "| decode tensor-cores | bf16, contiguous, " in (out / "bench.md").read_text()
    assert json.loads((out / "profile.json").read_text())["name"] == "Fake GPU, measured"
    machine, *raw = map(json.loads, (out / "profile.rows.jsonl").read_text().splitlines())
    assert machine["machine"]["backend"] == "cuda" and raw and not any("failed" in row for row in raw)
    assert sorted(file.name for file in out.iterdir()) == [
        "bench.jsonl", "bench.md", "check.jsonl", "profile.json", "profile.rows.jsonl",
    ]  # fmt: skip
    sizes = {file.name: file.stat().st_size for file in out.iterdir()}
    assert sum(sizes.values()) < 4 << 20
    again = python(fake_gpu, "-m", "kvsim_kernels", "bench", "--tiny", "--out", str(out / "bench.jsonl"))
    assert again.returncode == 0 and rows(out / "bench.jsonl") == timed


LOSING = """#!{python}
import os, sys, torch
from kvsim_kernels import grid
from kvsim_kernels.__main__ import main
from kvsim_kernels.grid import Case

def dies():
    os.abort()

def loses(*_):
    torch.cuda.synchronize = loses
    raise RuntimeError("CUDA error: an illegal memory access")

cases = [("good", lambda: 0.0), ("dies", dies), ("loses the device", loses), ("good, too", lambda: 0.0)]
grid.cases = lambda device, wide=False: [Case("k", name, 0, run) for name, run in cases]
sys.exit(main(sys.argv[3:]))
"""


def test_a_kernel_that_kills_the_process_or_the_device_hides_no_other(
    fake_gpu: dict[str, str], tmp_path: Path
) -> None:
    """`-m kvsim_kernels` is run by a script whose grid has two bad cases."""
    losing, out = tmp_path / "losing", tmp_path / "check.jsonl"
    losing.write_text(LOSING.format(python=sys.executable))
    losing.chmod(0o755)
    script = f"""
import sys
from kvsim_kernels.commands import gpu
sys.executable = {str(losing)!r}
print(gpu.stage(["check", "--out", {str(out)!r}], 100))
"""
    assert said(fake_gpu, script) == "1"
    assert [(row["case"], row["ok"]) for row in rows(out)] == [
        ("good", True), ("loses the device", False), ("good, too", True),
    ]  # fmt: skip
    begun = [json.loads(line).get("case") for line in out.read_text().splitlines() if '"begun"' in line]
    assert begun == ["good", "dies", "dies", "loses the device", "good, too"]
