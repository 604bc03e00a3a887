"""`gpu`, what `make gpu` runs: compile, check every kernel on the device, benchmark, calibrate. Resumable; few small
files."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from .. import build, grid
from ..speed import run as runner
from ..speed.points import points
from ..speed.record import Record, environment
from .bench import bench, gpu

CALIBRATION = 0.55
"""share of the time left after the checks that the calibration gets"""
FIT_SECONDS = 25
"""that its start and its fit take"""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("kernel-gpu"), help="folder of results; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything; default: %(default)s")


def run(asked: argparse.Namespace) -> int:
    """Exit code 0 if every kernel is right. Writes check.jsonl, bench.jsonl, bench.md, and what `calibrated` does."""
    device = gpu()
    end = time.monotonic() + asked.minutes * 60
    with torch.cuda.device(device), torch.inference_mode():
        compiled(device)
        wrong = check(device, Record(asked.out / "check.jsonl", environment(device)), end)
        left = end - time.monotonic()
        failed = bench(device, asked.out / "bench.jsonl", left * (1 - CALIBRATION), "", as_json=False)
        write_table(device, asked.out)
    calibrated(device, asked.out, end - time.monotonic() - FIT_SECONDS)
    return 1 if wrong or failed else 0


def compiled(device: torch.device) -> None:
    """Compile everything for this chip, on all cores; what does not compile fails in its own check."""
    major, minor = torch.cuda.get_device_capability(device)
    build.nvrtc_version()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(build.cubin, kernel.source, kernel.expression, f"sm_{major}{minor}")
            for kernel in grid.variants()
        ]
    broken = sum(job.exception() is not None for job in jobs)
    print(f"{len(jobs)} kernels compiled for sm_{major}{minor}, {broken} failed", file=sys.stderr, flush=True)


def calibrated(device: torch.device, out: Path, seconds: float) -> None:
    """Raw rows and a profile of tier `measured`, by kvsim_calibration where that can be imported: in a process of its
    own, which starts with free memory."""
    command = [sys.executable, "-m", "kvsim_calibration", "--device", f"cuda:{device.index or 0}", "--backend", "cuda",
               "--budget", f"{max(0, int(seconds))}s", "--out", str(out / "profile.json"), "--resume"]
    if importlib.util.find_spec("kvsim_calibration") is None:
        print("kvsim_calibration can't be imported here: no profile is made", file=sys.stderr, flush=True)
    elif subprocess.run(command).returncode:
        print("no profile was made: see above", file=sys.stderr, flush=True)


def check(device: torch.device, record: Record, end: float) -> int:
    """Run the cases that the record lacks; the number of wrong ones."""
    done = record.rows()
    for case in grid.cases(device):
        if (case.kernel, case.case) in done or time.monotonic() > end:
            continue
        error = case.run()
        ok = error <= case.bound
        known = error if math.isfinite(error) else None
        record.add({"kernel": case.kernel, "case": case.case, "error": known, "bound": case.bound, "ok": ok})
    rows = record.rows().values()
    wrong = [f"{row['kernel']}, {row['case']}: {row['error']} > {row['bound']}" for row in rows if not row["ok"]]
    print("\n".join([*wrong, f"{len(rows)} cases checked, {len(wrong)} wrong"]), file=sys.stderr, flush=True)
    return len(wrong)


def write_table(device: torch.device, out: Path) -> None:
    about = environment(device)
    found = Record(out / "bench.jsonl", about).rows()
    rows = runner.shares(row for point in points() if (row := found.get((point.kernel, point.case))))
    facts = "".join(f"- {name}: {value}\n" for name, value in about.items())
    (out / "bench.md").write_text(f"{facts}\n{runner.markdown(runner.table(rows))}")
