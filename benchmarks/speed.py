"""How fast the simulator is on this machine: `make bench`.

Whole processes are timed as a user starts them (`kvsim simulate --no-interval --json`), by CPU and wall-clock time and
peak memory; the event loop alone in CPU time, inside this process. Nothing asserts: a busy machine only shows worse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kvsim import native
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import simulate, trace_of
from kvsim.trace.types import make_trace

SHARED = Path(os.environ.get("KVSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def main() -> None:
    if not native.up_to_date():
        print("The inner loop is not compiled (make native): everything takes about three times as long.")
    print(f"{'what':<40}{'measured':>22}{'goal':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for what, measured, goal in rows(Path(folder)):
            print(f"{what:<40}{measured:>22}{goal:>16}", flush=True)


def rows(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(what, measured, goal) of every case; the long one comes last."""
    yield "kvsim --help", f"{command_cpu_s(['--help']):.2f} s CPU", "≤ 0.3 s"
    few, many = step_ns(8), step_ns(512)
    yield "a step of 512 sequences ÷ one of 8", f"{many / few:.2f} ({many / 1e3:.1f} µs)", "≤ 1.3"
    small = constant_trace(folder / "10k.csv", 10_000, 8.0)
    yield "10,000 × 512/128 tokens, event loop", f"{event_loop_s(small):.2f} s CPU", "≤ 0.3 s"
    flags = ["--model", "llama-2-7b", "--device", "a100-80-sxm", "--max-num-seqs", "128", "--policy", "paged"]
    wall, cpu, _ = process([*flags, "--trace", str(small)])
    yield "… whole process", f"{wall:.2f} s ({cpu:.2f} s CPU)", "≤ 1.5 s"
    azure = SHARED / "traces" / "azure_2023_conv.csv.gz"
    hour, name = (str(azure), "Azure chat hour") if azure.exists() else ("sample", "bundled chat hour")
    wall, cpu, _ = process(["--trace", hour, "--model", "llama-3.1-8b", "--device", "h100-sxm"])
    yield f"{name}, whole process", f"{wall:.2f} s ({cpu:.2f} s CPU)", "≤ 3 s"
    wall, cpu, peak = process([*flags, "--trace", str(constant_trace(folder / "1m.csv", 1_000_000, 8.0))])
    yield "1,000,000 requests, whole process", f"{wall:.0f} s, {peak / 2**30:.2f} GiB", "≤ 60 s, 2 GiB"


def constant_trace(file: Path, requests: int, rate: float) -> Path:
    """Poisson arrivals of 512 prompt and 128 output tokens, as a CSV."""
    gaps = np.random.default_rng(0).exponential(1e9 / rate, requests)
    lines = ["arrival_ns,prompt_tokens,output_tokens", *(f"{t},512,128" for t in gaps.cumsum().astype(np.int64))]
    file.write_text("\n".join(lines) + "\n")
    return file


def event_loop_s(trace: Path) -> float:
    """CPU seconds from the first event to the last, the best of three."""
    scenario = Scenario(
        trace=str(trace), model="llama-2-7b", device="a100-80-sxm", policy="paged", max_num_seqs=128, interval=False
    )
    setup, requests = prepare(scenario), trace_of(scenario)
    times = []
    for _ in range(3):
        begin = time.process_time()
        simulate(requests, setup, setup.cost)
        times.append(time.process_time() - begin)
    return min(times)


def step_ns(sequences: int) -> float:
    """CPU time the simulator needs for one decode step of that many sequences, walked step by step."""
    steps = 4000
    arrival = np.append(np.zeros(sequences), 3600e9)  # one more an hour later: the timeline's grid is that of an hour
    lengths = np.append(np.full(sequences, 64), 1), np.append(np.full(sequences, steps), 1)
    trace = make_trace("steps", "made", arrival, *lengths)
    scenario = Scenario(
        trace="sample", model="llama-3.2-1b", device="h200-sxm", policy="paged", max_num_seqs=sequences, max_stride=1,
        interval=False,
    )
    setup = prepare(scenario)
    times = []
    for _ in range(3):
        begin = time.process_time_ns()
        recorder, _ = simulate(trace, setup, setup.cost)
        times.append((time.process_time_ns() - begin) / recorder.engine_steps)
    return min(times)


def process(flags: Sequence[str]) -> tuple[float, float, int]:
    """(wall seconds, CPU seconds, peak bytes) of one `kvsim simulate`."""
    command = [sys.executable, "-m", "kvsim", "simulate", *flags, "--no-interval", "--json"]
    begin = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    answer = json.loads(child.stdout.read())
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0
    assert answer["requests"]["completed"] > 0
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def command_cpu_s(arguments: Sequence[str]) -> float:
    """CPU seconds of one `kvsim` command."""
    child = subprocess.Popen([sys.executable, "-m", "kvsim", *arguments], stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(child.pid, 0)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
