"""The kernels on an NVIDIA GPU: every case of every grid, and every kind of benchmark point in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from kvsim_kernels import grid
from kvsim_kernels.speed import run as runner
from kvsim_kernels.speed.points import points
from kvsim_kernels.speed.timing import timed

pytestmark = pytest.mark.gpu


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_case_against_float64(gpu: torch.device) -> None:
    cases = list(grid.cases(gpu, wide=True))
    assert len(cases) > 100
    assert [(case.kernel, case.case) for case in cases if not case.run() <= case.bound] == []


@pytest.mark.timeout(900)
def test_every_kind_of_point_in_a_graph(gpu: torch.device) -> None:
    """Each public function is captured and replayed; what the replays leave is right. Swapping uses pinned memory."""
    swaps = [point for point in points() if point.kernel == "kv_copy"]
    with torch.cuda.device(gpu):
        rows = [runner.measured(point, gpu, timed, l2_bytes=0) for point in (*points(tiny=True), *swaps)]
    assert [(row["kernel"], row["case"], row["error"]) for row in rows if not row["ok"]] == []
    assert all(row["median_ns"] > 0 for row in rows)
