"""Rows on disk survive a kill at any byte, and go on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvsim_calibration.lines import Lines

from kvsim.errors import InputError

ROWS = [{"case": "a", "ns": 1.5}, {"case": "µ", "text": "two\nlines"}, {"case": "c", "deep": {"x": [1, None]}}]


def filled(path: Path) -> Path:
    lines = Lines(path)
    for row in ROWS:
        lines.add(row)
    return path


def test_what_was_added_is_read_back(tmp_path: Path) -> None:
    lines = Lines(filled(tmp_path / "deep" / "rows.jsonl"))
    assert lines.rows == ROWS and not lines.foreign


def test_a_kill_costs_the_row_that_was_being_written_at_most(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole.jsonl").read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        part = tmp_path / "part.jsonl"
        part.write_bytes(whole[:cut])
        kept = sum(end <= cut + 1 for end in ends)  # a row that lacks only the end of its line is whole
        lines = Lines(part)
        assert lines.rows == ROWS[:kept] and not lines.foreign
        lines.add({"case": "next"})
        assert Lines(part).rows == lines.rows == [*ROWS[:kept], {"case": "next"}]
        assert part.read_bytes().startswith(whole[:cut])


def test_what_is_no_row_is_passed_over_and_said(tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n[1]\n")
    assert Lines(other).rows == [] and Lines(other).foreign
    with pytest.raises(InputError, match="can't be read"):
        Lines(tmp_path)
