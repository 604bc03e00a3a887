"""The file of raw rows beside a profile: JSON lines, written when measured, so that a killed run goes on.

The first line describes the machine; a row is one visit to one case. Lines are only ever added. One that a kill has
cut off is no JSON: it is passed over, and what comes after begins on a line of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvsim.errors import InputError

Row = dict[str, Any]
FORMAT = 1


class Store:
    """Raw rows of one machine, in one file."""

    def __init__(self, path: Path) -> None:
        """Raises InputError for a file that is no file of raw rows."""
        self.path = path
        self.machine: Row | None = None
        """its first line"""
        self.rows: list[Row] = []
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise InputError(f"{self.path} can't be read: {error}") from None
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and "machine" in row:
                if row.get("format") != FORMAT:
                    raise InputError(f"{self.path} has format {row.get('format')}, this kvsim reads {FORMAT}")
                self.machine = row["machine"]
            elif isinstance(row, dict) and "case" in row:
                self.rows.append(row)
        if self.machine is None and lines and any(line.strip() for line in lines[:-1]):
            raise InputError(f"{self.path} holds no raw rows: its first line must describe a machine")

    def describe(self, machine: Row) -> None:
        """Write the first line. Raises InputError where the file describes another machine."""
        if self.machine is None:
            self.machine = machine
            self._append({"format": FORMAT, "machine": machine})
        elif different := sorted(k for k in {*machine, *self.machine} if machine.get(k) != self.machine.get(k)):
            was = ", ".join(f"{k} {self.machine.get(k)}, now {machine.get(k)}" for k in different)
            raise InputError(f"{self.path} was measured under other conditions ({was}): use another --out")

    def add(self, row: Row) -> None:
        """Append a row and wait until it is on disk."""
        self.rows.append(row)
        self._append(row)

    def _append(self, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            torn = False
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
