"""The backends `torch` and `cuda`: every kind of case runs, is timed as it should be, and is what it is called."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvsim_calibration.backends import clock  # noqa: E402
from kvsim_calibration.backends.cases import Case, Lost  # noqa: E402
from kvsim_calibration.backends.clock import Timing  # noqa: E402
from kvsim_calibration.backends.torchrun import TorchRun  # noqa: E402

from kvsim.errors import InputError  # noqa: E402


def test_every_kind_of_case_runs_on_this_cpu(grid: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    run = TorchRun(torch.device("cpu"), "fp32", 1 << 16, 1 << 22)
    kinds: dict[tuple[Any, ...], Case] = {}
    for case in grid:
        v = case.values
        kinds[case.family, v.get("op"), v.get("kv_dtype"), v.get("block_size"), v.get("what")] = case
    unequal = {"heads": 4, "kv_heads": 2, "head_dim": 16, "kv_dtype": "fp32", "window": 0, "block_size": 16,
               "tokens": 0, "context": 0, "n": 3, "mean": 20, "longest": 40}
    for case in (*kinds.values(), Case("skew", unequal)):
        timings = run.time(case)
        assert set(timings) == ({"ns", "ns_mean", "ns_longest"} if case.family == "skew" else {"ns"})
        assert all(0 < t.p20 <= t.median <= t.p80 for t in timings.values()), case.name


def test_buffer_sets_outgrow_the_last_cache_level_and_stay_within_memory() -> None:
    run = TorchRun(torch.device("cpu"), "fp32", last_cache_bytes=1000, most_bytes=10_000)
    assert [run.sets(b) for b in (10, 100, 1999, 2000, 6000, 20_000)] == [64, 20, 2, 1, 1, 1]


def test_paged_decode_attends_to_what_contiguous_decode_does() -> None:
    """Same rows in either layout give the same output: what is timed is the kernel it is called."""
    run, other = (TorchRun(torch.device("cpu"), "fp32", 1, 1 << 20) for _ in range(2))
    key = {"heads": 4, "kv_heads": 2, "head_dim": 16, "kv_dtype": "fp32"}
    flat, _ = run.cache({**key, "block_size": 0}, [40, 40], [1, 1])
    paged, _ = other.cache({**key, "block_size": 16}, [40, 40], [1, 1])
    for which in ("keys", "values"):
        for at in (0, 1):
            rows = getattr(flat.store, which)[0][flat.row[at]]
            for position, block in enumerate(paged.tables[at]):
                part = rows[16 * position : 16 * position + 16]
                getattr(paged.store, which)[0][block][: len(part)] = part
    q = torch.randn(2, 4, 16)
    assert torch.equal(flat.attend_kept(0, q), paged.attend_kept(0, q))


def test_timing_takes_buffers_in_turn_and_says_how_far_samples_lie_apart() -> None:
    seen: list[int] = []
    timing = clock.timed([lambda: seen.append(0) or time.sleep(0.001), lambda: seen.append(1) or time.sleep(0.001)])
    assert timing.p20 <= timing.median <= timing.p80 and timing.median >= 1e6
    assert timing.samples >= clock.LEAST and abs(seen.count(0) - seen.count(1)) <= 1


def test_every_launch_is_washed_before_and_the_wash_is_not_timed() -> None:
    order: list[str] = []

    def wash() -> None:
        order.append("wash")

    timing = clock.timed([lambda: order.append("launch")], wash=wash)
    timed_part = order[order.index("wash"):]
    assert timed_part[::2] == ["wash"] * timing.samples and timed_part[1::2] == ["launch"] * timing.samples


@pytest.fixture
def cuda_on_cpu() -> Any:
    """The `cuda` backend on the kernels' CPU runner, timed by the host's clock."""
    from kvsim_kernels import host

    try:
        host.compiler()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    from kvsim_calibration.backends.cudarun import CudaRun

    def once(launches: Any) -> Timing:
        for launch in launches:
            launch()
        return Timing(1.0, 1.0, 1.0, 1)

    return CudaRun(torch.device("cpu"), "bf16", 1, 1 << 24, once)


KEY = {"heads": 4, "kv_heads": 1, "head_dim": 64, "window": 0}
CUDA_CASES = [
    Case("decode", {**KEY, "kv_dtype": "bf16", "block_size": 0, "n": 2, "length": 33}),
    Case("decode", {**KEY, "kv_dtype": "int8", "block_size": 16, "n": 1, "length": 20}),
    Case("prefill", {**KEY, "kv_dtype": "bf16", "block_size": 16, "chunks": 1, "tokens": 8, "context": 24}),
    Case("mixed", {**KEY, "kv_dtype": "bf16", "block_size": 16, "tokens": 8, "context": 0, "n": 2, "attended": 20}),
    Case("skew", {**KEY, "kv_dtype": "bf16", "block_size": 16, "tokens": 0, "context": 0, "n": 3, "mean": 20,
                  "longest": 40}),
    Case("memory", {"op": "append", "dtype": "bf16", "bytes": 1, "m": 3, **KEY, "block_size": 16}),
    Case("memory", {"op": "score", "dtype": "bf16", "bytes": 1, "m": 40, **KEY}),
    Case("memory", {"op": "copy", "dtype": "bf16", "bytes": 1, "m": 2, **KEY, "what": "blocks"}),
    Case("memory", {"op": "copy", "dtype": "bf16", "bytes": 1, "m": 1, **KEY, "what": "compact"}),
    Case("memory", {"op": "host_copy", "dtype": "bf16", "bytes": 1, "m": 2, **KEY, "what": "out"}),
    Case("memory", {"op": "host_copy", "dtype": "bf16", "bytes": 1, "m": 2, **KEY, "what": "in"}),
    Case("memory", {"op": "act", "dtype": "bf16", "bytes": 1, "m": 2, "inter": 16}),
    Case("linear", {"dtype": "bf16", "n": 16, "k": 32, "m": 3}),
]


@pytest.mark.parametrize("case", CUDA_CASES, ids=lambda case: case.name)
def test_the_cuda_backend_times_kernels_whose_results_are_right(cuda_on_cpu: Any, case: Case) -> None:
    assert set(cuda_on_cpu.time(case)) == ({"ns", "ns_mean", "ns_longest"} if case.family == "skew" else {"ns"})


def test_a_launch_that_computes_something_else_is_no_measurement(cuda_on_cpu: Any) -> None:
    cuda_on_cpu.timer = lambda launches: Timing(1.0, 1.0, 1.0, 1)  # nothing is launched: outputs stay poisoned
    with pytest.raises(RuntimeError, match="wrong result"):
        cuda_on_cpu.time(CUDA_CASES[0])


def test_an_error_after_which_the_device_is_silent_is_a_lost_device(
    cuda_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    cuda_on_cpu._time = fails
    cuda_on_cpu.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(Lost, match=r"the device is lost \(CUDA error: an illegal memory access\)"):
        cuda_on_cpu.time(CUDA_CASES[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.raises(RuntimeError, match="and more"):
        cuda_on_cpu.time(CUDA_CASES[0])


def test_the_cuda_backend_times_bf16_only() -> None:
    from kvsim_calibration.backends.command import Asked, size_of

    with pytest.raises(InputError, match="--dtypes fp32: the cuda backend times bf16; others are for --backend torch"):
        size_of(Asked((), Path("x.json"), 1.0), torch.device("cpu"), "cuda", ("bf16", "fp32"))
