"""Rows on disk, a JSON object a line, written when they are made, so that a run that is killed goes on where it was.

Lines are only ever added. One that a kill has cut off is no JSON: it is passed over, and what comes after begins on a
line of its own. What the fields of a row mean is its user's affair."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvsim.errors import InputError

Row = dict[str, Any]


class Lines:
    """The rows of one file; `add` keeps another."""

    def __init__(self, path: Path) -> None:
        """Raises InputError for a file that can't be read."""
        self.path = path
        self.rows: list[Row] = []
        self.foreign = False
        """whether whole lines are no rows"""
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"{self.path} can't be read: {error.strerror}") from None
        found = [(line, _row(line)) for line in text.split("\n")]
        self.rows = [row for _, row in found if row is not None]
        self.foreign = any(row is None and line.strip() for line, row in found[:-1])  # the last one may be cut off

    def add(self, row: Row) -> None:
        """Append a row and wait until it is on disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            torn = False
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)


def _row(line: str) -> Row | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
