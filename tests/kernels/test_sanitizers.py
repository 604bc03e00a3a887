"""The kernels under sanitizers, and bugs planted in them that must be found.

A sanitizer must be in a process from its start, so each run is a subprocess.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvsim_kernels import host
from kvsim_kernels.build import CSRC

# The first case of each kernel and format of every grid, whose kernels then run under the sanitizer of the process.
CLEAN = """
import torch
from kvsim_kernels import grid
first = {}
for case in grid.cases(torch.device("cpu")):
    first.setdefault(case.kernel, case)
for case in first.values():
    error = case.run()
    assert error <= case.bound, (case.kernel, case.case, error)
print(len(first), "clean")
"""

# One decode by the kernel in the file argv[2]; exit code 3 if the answer is wrong.
DECODE = """
import sys
from dataclasses import replace
from kvsim_kernels import decode
from kvsim_kernels.grid.decode import error, inputs
path, source, block_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
plan = decode.plan
decode.plan = lambda *asked: replace(plan(*asked), kernel=replace(plan(*asked).kernel, source=source))
lengths = [30, 696 if block_size else 701]              # one ends with its block, one in the middle of four rows
sys.exit(0 if error(inputs(lengths, 1, 4, 64, block_size=block_size), path, splits=1) < 5e-3 else 3)
"""


def python(script: str, mode: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    sanitizer = {} if mode == "plain" else host.environment(mode)
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | sanitizer | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=880,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["asan", "tsan"])
def test_every_kernel_is_clean(mode: str) -> None:
    done = python(CLEAN, mode)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "clean" in done.stdout and "WARNING: ThreadSanitizer" not in done.stderr


def planted(folder: Path, path: str, old: str, new: str) -> str:
    """A copy of a decode kernel with `old` replaced by `new`; the file's name."""
    text = (CSRC / f"decode_{path.replace('-', '_')}.cu").read_text()
    assert text.count(old) == 1, f"{old!r} is in the kernel {text.count(old)} times"
    file = folder / "planted.cu"
    file.write_text(text.replace(old, new).replace('#include "', f'#include "{CSRC}/'))
    return str(file)


TENSOR, CUDA = "tensor-cores", "cuda-cores"
RINGS_TO_SUMS = "    __syncthreads();\n    float* tops"
ARRIVED = "        __syncwarp();                           // other lanes' copies\n"
READ = "        __syncwarp();                           // the stage may be overwritten from here on\n"
TWO_PLACES = "    if (warp == 0) __syncthreads();\n    else\n        __syncthreads();\n    float* tops"


WAIT, LATE = "copy_wait<STAGES - 1>", "copy_wait<STAGES>"
TABLE, TABLE_UNCLAMPED = "min(t0 + r, length - 1)", "t0 + r"
CACHE, CACHE_UNCLAMPED = "min(t0 + row, length - 1)", "t0 + row"
ONE_LANE = "if (lane == 0) tops"
VOTE = "if (__any_sync(ALL_LANES, 1) && lane == 0) tops"
HALF_VOTE = "if (lane < 16 && __any_sync(ALL_LANES, 1)) tops"
OVERFLOW, RACE, DIVERGENT = "heap-buffer-overflow", "data race", "divergent barrier"


@pytest.mark.parametrize(
    ("path", "old", "new", "mode", "finding"),
    [
        pytest.param(TENSOR, RINGS_TO_SUMS, "    float* tops", "tsan", RACE, id="missing barrier"),
        pytest.param(TENSOR, RINGS_TO_SUMS, TWO_PLACES, "plain", DIVERGENT, id="divergent barrier"),
        pytest.param(TENSOR, WAIT, LATE, "plain", None, id="late wait"),
        pytest.param(TENSOR, ARRIVED, "", "tsan", RACE, id="missing __syncwarp before reading"),
        pytest.param(TENSOR, READ, "", "tsan", RACE, id="missing __syncwarp after reading"),
        pytest.param(TENSOR, TABLE, TABLE_UNCLAMPED, "asan", OVERFLOW, id="unclamped row of the table"),
        pytest.param(CUDA, CACHE, CACHE_UNCLAMPED, "asan", OVERFLOW, id="unclamped row of the cache"),
        pytest.param(CUDA, ONE_LANE, HALF_VOTE, "plain", DIVERGENT, id="half a warp at a vote"),
        pytest.param(CUDA, ONE_LANE, VOTE, "plain", "", id="no bug, a whole warp at a vote"),
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, path: str, old: str, new: str, mode: str, finding: str | None) -> None:
    """finding: what the report must say; None: no report, but a wrong answer; empty: nothing is wrong."""
    block_size = "8" if path == TENSOR else "0"
    done = python(DECODE, mode, path, planted(tmp_path, path, old, new), block_size)
    if finding == "":
        assert done.returncode == 0, done.stderr[-4000:]
    elif finding is None:
        assert done.returncode == 3, done.stderr[-4000:]
    else:
        assert done.returncode not in (0, 3)
        assert finding in done.stderr, done.stderr[-4000:]


@pytest.mark.parametrize("path", [TENSOR, CUDA])
def test_the_other_order_of_threads_gives_the_same(path: str) -> None:
    source = f"decode_{path.replace('-', '_')}.cu"
    done = python(DECODE, "plain", path, source, "8", KVSIM_HOST_BACKWARDS="1")
    assert done.returncode == 0, done.stderr[-4000:]
