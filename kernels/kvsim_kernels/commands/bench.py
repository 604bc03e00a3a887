"""`bench`: every kernel on this GPU, against its ceiling and against other people's kernels."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from ..speed import run as runner
from ..speed.points import points
from ..speed.record import Record, environment, smi
from ..speed.timing import timed


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("kernel-bench.jsonl"), help="results, a table beside it; default: %(default)s"
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="start no point after this long; default: %(default)s"
    )
    parser.add_argument("--kernel", default="", help="only kernels with this in their name, and the ceilings")
    parser.add_argument("--tiny", action="store_true", help="small sizes: to try the machinery, not the speed")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, instead of a table")


def gpu() -> torch.device:
    """The current CUDA device; ValueError without one."""
    if not torch.cuda.is_available():
        raise ValueError(
            "timing kernels needs an NVIDIA GPU, and torch sees none here (`check --device cpu` needs none)"
        )
    return torch.device("cuda", torch.cuda.current_device())


def run(asked: argparse.Namespace) -> int:
    """Exit code 0 if every result is right, 1 if one is not, 3 if a fresh process must go on (see `attempt`)."""
    device = gpu()
    with torch.cuda.device(device), torch.inference_mode():
        return bench(device, asked)


def bench(device: torch.device, asked: argparse.Namespace) -> int:
    about = environment(device)
    record = Record(asked.out, about)
    chosen = [
        point for point in points(asked.tiny) if asked.kernel in point.kernel or point.kernel.startswith("ceiling")
    ]

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    clocks = dict(smi("clocks.sm", "clocks.mem", "temperature.gpu"))
    tell(f"{len(chosen)} points on {about['gpu']} to {asked.out}; now {clocks}")
    left = runner.run(chosen, device, record, timed, about["l2_bytes"], asked.minutes * 60, tell)
    found = record.rows()
    rows = runner.shares(row for point in chosen if (row := found.get((point.kernel, point.case))))
    wrong = sum(not row["ok"] for row in rows)
    if asked.json:
        print(json.dumps({"environment": about, "rows": rows, "left": left, "wrong": wrong}))
    else:
        show(runner.table(rows))
    again = " (run again to go on)" if left else ""
    tell(f"{len(rows)} points measured, {wrong} wrong, {left} left{again}")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.with_suffix(".md").write_text(runner.report(about, rows))
    return 1 if wrong else 0


def show(lines: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(*lines[0])
    for line in lines[1:]:
        shown.add_row(*line)
    Console().print(shown)
