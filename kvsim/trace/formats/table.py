"""CSV files read by column name: fast where all is well, exact about the line where it is not."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.trace import build
from kvsim.trace.files import Member
from kvsim.trace.types import Int

if TYPE_CHECKING:
    import polars as pl

_WHOLE = re.compile(r"-?\d{1,18}")
_OTHER_DELIMITERS = {";": "';'", "\t": "tabs", "|": "'|'"}


def header(member: Member) -> list[str]:
    """Column names on the first line, as a comma-separated file has them."""
    with suppress(csv.Error):
        return next(csv.reader([member.first_line()]), [])
    return []


def listed(names: Iterable[str]) -> str:
    """Column names for a message: on one line, and not without end."""
    text = " ".join(", ".join(names).split())
    return text if len(text) <= 200 else text[:200] + " …"


def has_columns(member: Member, columns: tuple[str, ...]) -> bool:
    return set(columns) <= set(header(member))


def other_delimiter(member: Member, columns: tuple[str, ...]) -> str | None:
    """What separates the columns, in words, if they are all there but no comma does."""
    line = member.first_line()
    for delimiter, word in _OTHER_DELIMITERS.items():
        if set(columns) <= {name.strip().strip('"') for name in line.split(delimiter)}:
            return word
    return None


class Table:
    """A CSV's columns as text, turned into checked numbers on request. Raises InputError with file and line."""

    def __init__(self, member: Member, columns: tuple[str, ...]) -> None:
        import polars as pl  # 0.1 s: only when a CSV is read

        self._member = member
        names = header(member)
        self._require(names, columns)
        try:
            frame = pl.read_csv(member.bytes(), infer_schema=False)
        except pl.exceptions.PolarsError:
            raise self._ragged(len(names)) from None
        self._require(frame.columns, columns)
        self._line = np.arange(2, frame.height + 2)
        blank = frame.select(pl.all_horizontal(pl.all().is_null())).to_series()
        if blank.any():
            self._line = self._line[~blank.to_numpy()]
            frame = frame.filter(~blank)
        self._frame = frame
        if not frame.height:
            raise InputError(f"{member.label} has a header and no rows: there is no request to replay")

    def __len__(self) -> int:
        return self._frame.height

    def __contains__(self, column: str) -> bool:
        return column in self._frame.columns

    def where(self, row: int) -> str:
        return f"{self._member.label} line {self._line[row]}"

    def text(self, column: str) -> pl.Series:
        """A column as strings; null where the field is empty or missing."""
        return self._frame[column]

    def floats(self, column: str, *, optional: bool = False) -> NDArray[np.float64]:
        """A column as float64. An empty field is NaN where `optional`, an error otherwise."""
        import polars as pl

        text = self._frame[column]
        numbers = text.cast(pl.Float64, strict=False)
        if numbers.null_count() > text.null_count():  # spaces around a number are harmless
            text = text.str.strip_chars()
            numbers = text.cast(pl.Float64, strict=False)
        bad = numbers.is_null() & text.is_not_null() if optional else numbers.is_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            said = "missing" if text[row] is None else repr(text[row])
            raise InputError(f"{self.where(row)}: {column} is {said}, it must be a number")
        return numbers.fill_null(float("nan")).to_numpy()

    def tokens(self, column: str) -> Int:
        return build.tokens(self.floats(column), column, self.where)

    def times(self, column: str, scale: int, *, missing: int | None = None) -> Int:
        """A column in units of `scale` ns, as nanoseconds; empty fields become `missing`, where that is given."""
        import polars as pl

        text = self._frame[column]
        if scale == 1:  # nanoseconds since 1970 do not fit a float
            exact = text.cast(pl.Int64, strict=False)
            if exact.null_count() == (0 if missing is None else text.null_count()):
                return exact.fill_null(missing).to_numpy() if missing is not None else exact.to_numpy()
        numbers = self.floats(column, optional=missing is not None)
        absent = self._frame[column].is_null().to_numpy()
        found = build.times(np.where(absent, 0.0, numbers), scale, column, self.where)
        return found if missing is None else np.where(absent, missing, found)

    def strings(self, column: str) -> list[str | None]:
        return self._frame[column].to_list()

    def groups(self, column: str) -> Int:
        """Equal texts → equal numbers from 0, in order of appearance; −1 where empty."""
        number: dict[str | None, int] = {None: -1}
        return np.array([number.setdefault(text, len(number) - 1) for text in self.strings(column)], np.int64)

    def lists(self, column: str) -> tuple[Int, Int]:
        """Whole numbers separated by spaces → (all of them, where each row's begin; n + 1 entries)."""
        rows = [text.split() if text else [] for text in self.strings(column)]
        start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        try:
            return np.array([int(number) for row in rows for number in row], np.int64), start
        except (ValueError, OverflowError):
            row = next(i for i, numbers in enumerate(rows) if not all(_WHOLE.fullmatch(number) for number in numbers))
            said = self._frame[column][row]
            raise InputError(f"{self.where(row)}: {column} is {said!r}, it must be whole numbers and spaces") from None

    def _require(self, names: list[str], columns: tuple[str, ...]) -> None:
        missing = [column for column in columns if column not in names]
        if not missing:
            return
        label = self._member.label
        word = other_delimiter(self._member, columns)
        if word:
            raise InputError(f"{label} line 1: columns are separated by {word}, it must be commas")
        raise InputError(f"{label} line 1 has no column {missing[0]!r}: it has {listed(names)}")

    def _ragged(self, width: int) -> InputError:
        """The first row with more fields than the header has."""
        with suppress(csv.Error):
            for line, text in self._member.lines():
                fields = len(next(csv.reader([text])))
                if fields > width:
                    return InputError(f"{self._member.label} line {line} has {fields} fields, the header has {width}")
        return InputError(f"{self._member.label} is not a well-formed CSV file: check its quotes and commas")
