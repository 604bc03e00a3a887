"""`check`: every case of the grid on a device; error and bound of each."""

from __future__ import annotations

import argparse
import json
import math
import sys

import torch

from .. import grid


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda[:n] (default: a GPU if there is one)")
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
        rows.append({"kernel": case.kernel, "case": case.case, "error": error, "bound": case.bound, "ok": error <= case.bound})
        print(f"{case.kernel:22s} {case.case:70s} {error:9.2e} <= {case.bound:.0e} {'' if rows[-1]['ok'] else 'FAILED'}", file=sys.stderr, flush=True)
    failed = [row for row in rows if not row["ok"]]
    if asked.json:
        finite = [row | {"error": row["error"] if math.isfinite(row["error"]) else None} for row in rows]
        print(json.dumps({"device": str(device), "cases": len(rows), "failed": len(failed), "rows": finite}))
    print(f"{len(rows)} cases on {device}, {len(failed)} failed", file=sys.stderr)
    return 1 if failed or not rows else 0
