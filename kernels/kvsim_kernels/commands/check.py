"""`check`: every case of the grid on a device; error and bound of each."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from .. import grid
from ..speed.attempt import attempt
from ..speed.record import Record, Row, environment


def options(parser: argparse.ArgumentParser) -> None:
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, help="cpu or cuda[:n] (default here: %(default)s)")
    parser.add_argument("--kernel", default="", help="only kernels whose name has this in it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--wide", action="store_true", help="the slow cases too")
    size.add_argument("--tiny", action="store_true", help="one case a kernel")
    parser.add_argument("--out", type=Path, help="file of results, to go on where a run was cut short")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no case after this long")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(asked: argparse.Namespace) -> int:
    """Exit code 0 if every error is within its bound, 1 if not, 3 if a fresh process must go on (see `attempt`)."""
    device = named(asked.device)
    record = Record(asked.out, environment(device)) if asked.out else None
    cases = [case for case in grid.cases(device, asked.wide) if asked.kernel in case.kernel]
    rows = list(checked(first(cases) if asked.tiny else cases, device, record, asked.minutes * 60))
    failed = sum(not row["ok"] for row in rows)
    if asked.json:
        print(json.dumps({"device": str(device), "cases": len(rows), "failed": failed, "rows": rows}))
    print(f"{len(rows)} cases on {device}, {failed} failed", file=sys.stderr)
    return 1 if failed or not rows else 0


def named(text: str) -> torch.device:
    """The device, a GPU with its number; ValueError for one that is not here."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device {text}: cpu or cuda[:n] is needed")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ValueError(f"--device {text}: torch sees {torch.cuda.device_count()} GPUs here, numbered from 0")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def checked(cases: Iterable[grid.Case], device: torch.device, record: Record | None, seconds: float) -> Iterator[Row]:
    """A row a case, those of the record first come from there; no case is begun after so many seconds."""
    done, end = record.rows() if record else {}, time.monotonic() + seconds
    for case in cases:
        row = done.get((case.kernel, case.case))
        if row is None:
            if time.monotonic() > end:
                continue
            row = attempt(case.kernel, case.case, lambda case=case: measured(case), device, record)  # type: ignore[misc]
            print(line(row), file=sys.stderr, flush=True)
        yield {"error": None, "bound": case.bound, **row}


def measured(case: grid.Case) -> Row:
    error = case.run()
    known = error if math.isfinite(error) else None  # JSON has no NaN
    return {"error": known, "bound": case.bound, "ok": error <= case.bound}


def first(cases: Iterable[grid.Case]) -> list[grid.Case]:
    """The first case of each kernel."""
    found: dict[str, grid.Case] = {}
    for case in cases:
        found.setdefault(case.kernel, case)
    return list(found.values())


def line(row: Row) -> str:
    what = f"{row['kernel']:22s} {row['case']:70s} "
    if "failed" in row or "skipped" in row:
        return what + str(row.get("failed") or row["skipped"])
    error = math.nan if row["error"] is None else row["error"]
    return f"{what}{error:9.2e} <= {row['bound']:.0e} {'' if row['ok'] else 'FAILED'}"
