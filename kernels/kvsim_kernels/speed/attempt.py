"""One case or point at a time, so that a kernel that fails, hangs or kills the process costs its own row and no other.

A device that answered with an error may answer nothing any more (a bad address ends the CUDA context): then, and where
a capture was cut short, the process must end. `Again` says so, and its exit code tells the caller to start a fresh one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import torch

from .record import Record, Row

SECONDS = 60  # that one attempt may take on a GPU; other people's kernels may compile for minutes, see `grace`
AGAIN = 3  # exit code


class Again(RuntimeError):
    """This process can't go on; a fresh one can."""


def attempt(kernel: str, case: str, make: Callable[[], Row], device: torch.device, record: Record | None = None) -> Row:
    """The row that `make` gives, on disk if there is a record; where it raises, a row that says why.

    `failed`: the error. `skipped`: too large for this device's memory. On a GPU an attempt that hangs ends the process.
    """
    if record:
        record.begin(kernel, case)
    grace(device, SECONDS)
    row: Row
    try:
        row = make()
    except torch.OutOfMemoryError:
        row = {"ok": True, "skipped": "does not fit this device's memory"}
    except Exception as error:
        row = {"ok": False, "failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
    row = {"kernel": kernel, "case": case, **row}
    if record:
        record.add(row)
    lost = not sound(row, device)
    grace(device, 0)
    if lost:
        why = row.get("failed", "someone else's kernel failed")
        raise Again(f"{kernel}, {case}: {why}; what is left needs a fresh process")
    return row


def grace(device: torch.device, seconds: int) -> None:
    """On a GPU: end the process in `seconds` from now (nothing else wakes a host that waits for a kernel); 0: don't."""
    if device.type == "cuda":
        signal.alarm(seconds)


def sound(row: Row, device: torch.device) -> bool:
    """Whether the process can go on after this row."""
    rivals_failed = any(isinstance(ns, str) for ns in row.get("rivals_ns", {}).values())
    if device.type != "cuda" or not ("failed" in row or rivals_failed):
        return True
    if rivals_failed:  # maybe in the middle of a capture, which torch does not get over
        return False
    try:
        torch.cuda.synchronize(device)
        return not torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return False
