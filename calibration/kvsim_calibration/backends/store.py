"""The file of raw rows beside a profile (kvsim_calibration/lines.py). Its first line describes the machine; a row is
one visit to one case."""

from __future__ import annotations

from pathlib import Path

from kvsim.errors import InputError
from kvsim_calibration.lines import Lines, Row

FORMAT = 1


class Store:
    """Raw rows of one machine, in one file."""

    def __init__(self, path: Path) -> None:
        """Raises InputError for a file that is no file of raw rows."""
        self.path = path
        self.machine: Row | None = None
        """its first line"""
        self._lines = Lines(path)
        self.rows = [row for row in self._lines.rows if "case" in row]
        for row in self._lines.rows:
            if "machine" in row:
                if row.get("format") != FORMAT:
                    raise InputError(f"{path} has format {row.get('format')}, this kvsim reads {FORMAT}")
                self.machine = row["machine"]
        if self.machine is None and (self._lines.rows or self._lines.foreign):
            raise InputError(f"{path} holds no raw rows: its first line must describe a machine")

    def describe(self, machine: Row) -> None:
        """Write the first line. Raises InputError where the file describes another machine."""
        if self.machine is None:
            self.machine = machine
            self._lines.add({"format": FORMAT, "machine": machine})
        elif different := sorted(k for k in {*machine, *self.machine} if machine.get(k) != self.machine.get(k)):
            was = ", ".join(f"{k} {self.machine.get(k)}, now {machine.get(k)}" for k in different)
            raise InputError(f"{self.path} was measured under other conditions ({was}): use another --out")

    def add(self, row: Row) -> None:
        """Append a row and wait until it is on disk."""
        self.rows.append(row)
        self._lines.add(row)
