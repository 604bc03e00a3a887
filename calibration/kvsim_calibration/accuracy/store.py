"""Finished rows on disk, a JSON line each, so that a run that was stopped goes on where it was.

The file's name is a hash of everything that a row depends on (model files, text, lengths, code), so what lies there
is never from another question.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import kvsim_kernels.reference.select as select

import kvsim.cache.retention as retention
import kvsim_calibration.accuracy as accuracy
from kvsim_calibration.engine import model, ops
from kvsim_calibration.engine.caches import base
from kvsim_calibration.engine.caches import store as formats

_CODE = (base, formats, model, ops, retention, select)
"""what a row depends on beside this package"""


class Rows:
    """`done` is what was measured already; `add` appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: list[dict[str, Any]] = []
        if path.is_file():
            text = path.read_text()
            self.done = [row for line in text.splitlines() if (row := _whole(line))]
            if text and not text.endswith("\n"):
                self._append("")

    def add(self, row: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._append(json.dumps(row))
        self.done.append(row)

    def _append(self, line: str) -> None:
        """Only ever added to: a kill at any moment costs the last row at most."""
        with self.path.open("a") as file:
            file.write(line + "\n")


def place(facts: dict[str, Any]) -> Path:
    """Where the rows of a run with these facts lie."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    files = [Path(str(module.__file__)) for module in _CODE]
    for file in [*files, *sorted(Path(str(accuracy.__file__)).parent.glob("*.py"))]:
        digest.update(file.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "kvsim" / "accuracy" / f"{digest.hexdigest()[:16]}.jsonl"


def _whole(line: str) -> dict[str, Any] | None:
    """A row; None for a last line that was cut when the run was killed."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None
