"""JSON lines: one object a line, with the line number in every error."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.trace import build
from kvsim.trace.files import Member
from kvsim.trace.formats.table import listed
from kvsim.trace.types import Int

_KEY = re.compile(r'"(\w+)"\s*:')


def keys(member: Member) -> set[str]:
    """Keys of the object on the first line, or those in sight where that line is too long to be looked at whole."""
    line = member.first_line()
    if not line.startswith("{"):
        return set()
    try:
        return set(json.loads(line))
    except (ValueError, RecursionError):
        return set(_KEY.findall(line))


def has_keys(member: Member, wanted: tuple[str, ...]) -> bool:
    return set(wanted) <= keys(member)


class JsonLines:
    """A file's objects by column. Raises InputError with file and line."""

    def __init__(self, member: Member) -> None:
        self._label = member.label
        self._line: list[int] = []
        self.objects: list[dict[str, Any]] = []
        loads = json.loads
        for number, line in member.lines():
            try:
                found = loads(line)
            except ValueError as error:
                where = f"{member.label} line {number}"
                raise InputError(f"{where} is not JSON ({error}): each line is one object") from None
            if not isinstance(found, dict):
                raise InputError(f"{member.label} line {number} is not an object: each line is one, like {{\"a\": 1}}")
            self._line.append(number)
            self.objects.append(found)
        if not self.objects:
            raise InputError(f"{member.label} has no rows: there is no request to replay")

    def __len__(self) -> int:
        return len(self.objects)

    def where(self, row: int) -> str:
        return f"{self._label} line {self._line[row]}"

    def __contains__(self, key: str) -> bool:
        return any(key in found for found in self.objects)

    def column(self, key: str) -> list[Any]:
        """The values of a key that every object must have."""
        try:
            return [found[key] for found in self.objects]
        except KeyError:
            row = next(i for i, found in enumerate(self.objects) if key not in found)
            raise InputError(f"{self.where(row)} has no key {key!r}: it has {listed(self.objects[row])}") from None

    def optional(self, key: str) -> list[Any]:
        """The values of a key, None where an object lacks it."""
        return [found.get(key) for found in self.objects]

    def tokens(self, key: str) -> Int:
        return build.tokens(self.column(key), key, self.where)

    def times(self, key: str, scale: int, *, missing: int | None = None) -> Int:
        """A key in units of `scale` ns, as nanoseconds; absent and null become `missing`, where that is given."""
        values = self.column(key) if missing is None else self.optional(key)
        if scale == 1 and all(type(value) is int or value is None for value in values):
            return np.array([missing if value is None else value for value in values], np.int64)
        absent = np.array([value is None for value in values])
        found = build.times([0 if value is None else value for value in values], scale, key, self.where)
        return found if missing is None else np.where(absent, missing, found)

    def floats(self, key: str, *, optional: bool = False) -> NDArray[np.float64]:
        """A key as float64. Absent and null are NaN where `optional`, an error otherwise."""
        values = self.optional(key) if optional else self.column(key)
        if optional:
            values = [float("nan") if value is None else value for value in values]
        return build.floats(values, key, self.where)

    def strings(self, key: str) -> list[str | None]:
        return [None if value is None else str(value) for value in self.optional(key)]

    def lists(self, key: str) -> tuple[Int, Int]:
        """Lists of ids under a key → (all of them, where each row's begin; n + 1 entries). Absent is empty."""
        return flatten(self.optional(key), key, self)


def flatten(lists: Sequence[Any], what: str, rows: JsonLines) -> tuple[Int, Int]:
    """Lists of whole numbers, end to end, and where each begins."""
    lists = [ids if ids is not None else [] for ids in lists]
    flat: list[Any] = []
    start = [0]
    for row, ids in enumerate(lists):
        if not isinstance(ids, list):
            raise InputError(f"{rows.where(row)}: {what} is {ids!r}, it must be a list of whole numbers")
        flat.extend(ids)
        start.append(len(flat))
    bounds = np.asarray(start, np.int64)
    try:
        found = np.array(flat, np.int64) if not flat else np.array(flat)
    except (ValueError, OverflowError):
        found = np.array(["not numbers"])
    if found.dtype != np.int64 or found.ndim != 1:
        at = next(i for i, value in enumerate(flat) if type(value) is not int or not -(2**63) <= value < 2**63)
        row = int(np.searchsorted(bounds, at, "right")) - 1
        raise InputError(f"{rows.where(row)}: {what} holds {flat[at]!r}, it must hold whole numbers of 64 bits")
    return found, bounds
