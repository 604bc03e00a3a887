"""`check`: every case of the grid on a device; error and bound of each."""

from __future__ import annotations

import argparse
import json
import math
import sys

import torch

from .. import grid


def options(parser: argparse.ArgumentParser) -> None:
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, help="cpu or cuda[:n] (default here: %(default)s)")
    parser.add_argument("--kernel", default="", help="only kernels whose name has this in it")
    parser.add_argument("--wide", action="store_true", help="the slow cases too")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def run(asked: argparse.Namespace) -> int:
    """Exit code 0 if every error is within its bound, 1 if not."""
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    rows = []
    for case in grid.cases(device, asked.wide):
        if asked.kernel not in case.kernel:
            continue
        error = case.run()
        ok = error <= case.bound
        known = error if math.isfinite(error) else None     # JSON has no NaN
        rows.append({"kernel": case.kernel, "case": case.case, "error": known, "bound": case.bound, "ok": ok})
        line = f"{case.kernel:22s} {case.case:70s} {error:9.2e} <= {case.bound:.0e} {'' if ok else 'FAILED'}"
        print(line, file=sys.stderr, flush=True)
    failed = sum(not row["ok"] for row in rows)
    if asked.json:
        print(json.dumps({"device": str(device), "cases": len(rows), "failed": failed, "rows": rows}))
    print(f"{len(rows)} cases on {device}, {failed} failed", file=sys.stderr)
    return 1 if failed or not rows else 0
