"""kvsim's own format, as CSV or JSON lines: what `kvsim trace convert` writes, and what to make of any other log.

Columns (docs/traces.md): one of `arrival_s`, `arrival_ms`, `arrival_ns`; `prompt_tokens`, `output_tokens`. Optional:
`id` (unique; the row number, from 0, where absent), `session`, `parent` (an id; such a row may leave its arrival
empty), `think_s` (or `think_ns`), `priority`, `block_ids` with either `block_ends` or `block_size` (and `block_rule`).
Lists are JSON lists in JSON lines, and numbers separated by spaces in CSV.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import InputError
from kvsim.trace import build
from kvsim.trace.build import UNKNOWN, Rows, finish
from kvsim.trace.chain import Blocks
from kvsim.trace.files import Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.jsonlines import JsonLines, keys
from kvsim.trace.formats.table import Table, header
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_MS, NS_PER_S

_CLOCKS = {"arrival_ns": 1, "arrival_ms": NS_PER_MS, "arrival_s": NS_PER_S}
_LENGTHS = ("prompt_tokens", "output_tokens")


@FORMATS("kvsim")
class Generic(TraceFormat):
    about = "kvsim's own (CSV or JSON lines: arrival_s, prompt_tokens, output_tokens; optional parent, block_ids, …)"
    columns = ("arrival_s", *_LENGTHS)

    @staticmethod
    def sniff(source: Source) -> bool:
        names = set(header(source.only())) | keys(source.only())
        return source.single and set(_LENGTHS) <= names and bool(names & (_CLOCKS.keys() | {"parent"}))

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        member = source.only()
        columns = JsonLines(member) if member.first_line().startswith("{") else Table(member, _LENGTHS)
        prompt, output = columns.tokens("prompt_tokens"), columns.tokens("output_tokens")
        parent = _parents(columns)
        rows = Rows(
            _arrivals(columns, parent, source.path),
            prompt,
            output,
            session=_sessions(columns),
            parent=parent,
            think_ns=_think(columns),
            priority=_priority(columns),
            blocks=_blocks(columns, prompt, output, options.block_size),
        )
        return finish(rows, source.name, "kvsim", where=columns.where)


def _arrivals(columns: Table | JsonLines, parent: Int | None, path: str) -> Int:
    name = next((name for name in _CLOCKS if name in columns), None)
    if name is None:
        raise InputError(f"{path} has no arrival times: it needs a column arrival_s, arrival_ms or arrival_ns")
    if parent is None:
        return columns.times(name, _CLOCKS[name])
    arrival = columns.times(name, _CLOCKS[name], missing=UNKNOWN)
    lost = np.flatnonzero((arrival == UNKNOWN) & (parent < 0))
    if len(lost):
        where = columns.where(int(lost[0]))
        raise InputError(f"{where}: {name} is missing, only a row with a parent may leave it empty")
    return arrival


def _parents(columns: Table | JsonLines) -> Int | None:
    """Row of each row's parent; ids are checked on the way."""
    names = columns.strings("id") if "id" in columns else None
    if names is not None:
        row_of = {name: row for row, name in enumerate(names)}
        if len(row_of) < len(names):
            row = next(row for row, name in enumerate(names) if row_of[name] != row)
            other = columns.where(row_of[names[row]])
            raise InputError(f"{columns.where(row)}: id is {names[row]!r}, as on {other}; each row needs its own")
    if "parent" not in columns:
        return None
    if names is None:
        row_of = {str(row): row for row in range(len(columns))}
    parent = np.full(len(columns), -1, np.int64)
    for row, name in enumerate(columns.strings("parent")):
        if name is None or name == "-1":
            continue
        if name not in row_of:
            raise InputError(f"{columns.where(row)}: parent is {name!r}, and no row has that id")
        parent[row] = row_of[name]
    return parent


def _sessions(columns: Table | JsonLines) -> Int | None:
    if "session" not in columns:
        return None
    number: dict[str | None, int] = {None: -1, "-1": -1}
    return np.array([number.setdefault(name, len(number) - 2) for name in columns.strings("session")], np.int64)


def _think(columns: Table | JsonLines) -> Int | None:
    for name, scale in (("think_ns", 1), ("think_s", NS_PER_S)):
        if name in columns:
            think = columns.times(name, scale, missing=0)
            if (think < 0).any():
                where = columns.where(int((think < 0).argmax()))
                raise InputError(f"{where}: {name} is negative, it must be 0 or more")
            return think
    return None


def _priority(columns: Table | JsonLines) -> Int | None:
    if "priority" not in columns:
        return None
    values = columns.floats("priority", optional=True)
    return build.whole(np.nan_to_num(values, nan=0.0), "priority", columns.where)


def _blocks(columns: Table | JsonLines, prompt: Int, output: Int, given: int | None) -> Blocks | None:
    if "block_ids" not in columns:
        return None
    ids, start = columns.lists("block_ids")
    counts = np.diff(start)
    size = _block_size(columns) or given or 0
    if "block_ends" in columns:
        ends, bounds = columns.lists("block_ends")
        if not np.array_equal(bounds, start):
            row = int((np.diff(bounds) != counts).argmax())
            raise InputError(f"{columns.where(row)}: block_ends and block_ids must have the same number of entries")
        row_of = np.repeat(np.arange(len(counts)), counts)
        before = np.concatenate([[0], ends[:-1]])
        before[start[:-1][counts > 0]] = 0
        bad = (ends < before) | (ends > (prompt + output)[row_of])
        if bad.any():
            row = int(row_of[bad.argmax()])
            raise InputError(f"{columns.where(row)}: block_ends must increase, up to prompt + output tokens")
        return Blocks(ids, start, ends, size, "extent")
    if size < 1:
        raise InputError(f"{columns.where(0)}: block_ids need a column block_size (tokens) or block_ends")
    filled = counts > 0
    rule = _block_rule(columns)
    if rule == "ceil" or (rule is None and (counts == -(-prompt // size))[filled].all()):
        long = counts > -(-prompt // size)
        if long.any():
            row = int(long.argmax())
            raise InputError(
                f"{columns.where(row)}: {counts[row]} block_ids for {prompt[row]} prompt tokens, with the rule ceil "
                f"there are at most {-(-prompt[row] // size)} blocks of {size} tokens"
            )
        return Blocks.of_size(ids, start, size, "ceil", prompt)
    long = counts * size > prompt + output
    if long.any():
        row = int(long.argmax())
        raise InputError(
            f"{columns.where(row)}: {counts[row]} block_ids of {size} tokens are longer than prompt and output together"
        )
    return Blocks.of_size(ids, start, size, "floor", prompt)


def _block_rule(columns: Table | JsonLines) -> str | None:
    rules = {rule for rule in columns.strings("block_rule") if rule is not None} if "block_rule" in columns else set()
    if len(rules) > 1 or not rules <= {"ceil", "floor"}:
        raise InputError(f"{columns.where(0)}: block_rule must be ceil or floor, the same on every row")
    return next(iter(rules), None)


def _block_size(columns: Table | JsonLines) -> int:
    if "block_size" not in columns:
        return 0
    sizes = columns.floats("block_size", optional=True)
    found = np.unique(build.whole(sizes[~np.isnan(sizes)], "block_size", columns.where))
    if len(found) > 1 or (len(found) and found[0] < 0):
        raise InputError(f"{columns.where(0)}: block_size must be the same positive number on every row")
    return int(found[0]) if len(found) else 0
