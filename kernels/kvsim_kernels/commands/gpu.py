"""`gpu`, what `make gpu` runs: compile, check every kernel on the device, benchmark, calibrate. Resumable; few small
files.

Checks and benchmark run in processes of their own, started again where a kernel took one down, so that the first kernel
that fails on a new chip does not hide what the others do there.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from .. import build, grid
from ..speed.record import Record, environment
from .bench import gpu

CALIBRATION = 0.55
"""share of the time left after the checks that the calibration gets"""
FIT_SECONDS = 25
"""that its start and its fit take"""
SLACK_SECONDS = 30
"""that a stage may go on after its time: what it has begun"""
MOST_STARTS = 30
"""of a stage's processes"""
TINY_SECONDS = 30
TINY_CALIBRATION = ["--models", "smollm2-135m", "--max-batch", "2", "--max-context", "64", "--max-chunk", "16"]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("kernel-gpu"), help="folder of results; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything; default: %(default)s")
    parser.add_argument("--tiny", action="store_true", help="one case a kernel, small sizes: to try the machinery")


def run(asked: argparse.Namespace) -> int:
    """Exit code 0 if every kernel is right, 1 if one is not.

    Leaves check.jsonl, bench.jsonl, bench.md, profile.rows.jsonl and profile.json.
    """
    device = gpu()
    end = time.monotonic() + asked.minutes * 60
    if not asked.tiny:  # the few that are tried then are compiled when they are first launched
        compiled(device)
    missing = lacking()
    if missing:
        print(f"no profile will be made: {missing}", file=sys.stderr, flush=True)
    codes = []
    for name, share in (("check", 1.0), ("bench", 1.0 if missing or asked.tiny else 1 - CALIBRATION)):
        out = asked.out / f"{name}.jsonl"
        Record(out, environment(device)).again()
        left = end - time.monotonic()
        codes.append(stage([name, "--out", str(out), *(["--tiny"] if asked.tiny else [])], share * left))
    if not missing:
        seconds = min(end - time.monotonic() - FIT_SECONDS, TINY_SECONDS if asked.tiny else math.inf)
        calibrated(device, asked.out, seconds, asked.tiny)
    return 1 if any(codes) else 0


def compiled(device: torch.device) -> None:
    """Compile everything for this chip, on all cores; what does not compile fails in its own check."""
    major, minor = torch.cuda.get_device_capability(device)
    began = time.monotonic()
    build.nvrtc_version()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(build.cubin, kernel.source, kernel.expression, f"sm_{major}{minor}")
            for kernel in grid.variants()
        ]
    broken = sum(job.exception() is not None for job in jobs)
    seconds = time.monotonic() - began
    what = f"{len(jobs)} kernels compiled for sm_{major}{minor} in {seconds:.0f} s, {broken} failed"
    print(what, file=sys.stderr, flush=True)


def stage(command: list[str], seconds: float) -> int:
    """Run a command of this package for about so long, in a fresh process where one ends too early; its exit code."""
    end, code = time.monotonic() + seconds, 1
    for _ in range(MOST_STARTS):
        left = end - time.monotonic()
        words = [sys.executable, "-m", "kvsim_kernels", *command, "--minutes", f"{max(0.0, left) / 60:.3f}"]
        try:
            code = subprocess.run(words, timeout=max(0.0, left) + SLACK_SECONDS).returncode
        except subprocess.TimeoutExpired:
            return 1
        if code in (0, 1, 2) or left <= 0:
            break
        print(f"{command[0]} ended with code {code}: a fresh process goes on", file=sys.stderr, flush=True)
    return code


def lacking() -> str:
    """What Python says of the first module that calibrating needs and that is not there; empty if there is none."""
    modules = ("scipy", "kvsim_calibration.cli", *(f"kvsim_calibration.backends.{x}" for x in ("cudarun", "summary")))
    script = f"import {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def calibrated(device: torch.device, out: Path, seconds: float, tiny: bool) -> None:
    """Raw rows and a profile of tier `measured`, by kvsim_calibration: in a process of its own, with free memory."""
    command = [sys.executable, "-m", "kvsim_calibration", "--device", f"cuda:{device.index or 0}", "--backend", "cuda",
               "--budget", f"{max(1, int(seconds))}s", "--out", str(out / "profile.json"), "--resume",
               *(TINY_CALIBRATION if tiny else [])]
    try:
        code = subprocess.run(command, timeout=max(0.0, seconds) + FIT_SECONDS + SLACK_SECONDS).returncode
    except subprocess.TimeoutExpired:
        code = 1
    if code:
        print("no profile was made: see above (the raw rows are kept)", file=sys.stderr, flush=True)
