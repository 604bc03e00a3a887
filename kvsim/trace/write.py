"""A trace as kvsim's own format (docs/traces.md), CSV or JSON lines, gzipped where the name ends in .gz."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np

from kvsim.errors import InputError
from kvsim.trace.types import Trace

SUFFIXES = (".csv", ".jsonl")


def write(trace: Trace, path: str | Path) -> None:
    """Write the trace so that `load` gives the same requests again. Columns that say nothing are left out.

    Written to a temporary name and renamed. Raises InputError for a suffix other than .csv, .jsonl, and those with .gz.
    """
    place = Path(path)
    suffix = Path(place.name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES:
        raise InputError(f"{place}: the name must end in .csv or .jsonl, or one of these and .gz")
    columns = _columns(trace)
    if suffix == ".csv":
        text = _csv(columns)
    else:
        rows = zip(*columns.values(), strict=True)
        text = "".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
    data = text.encode()
    if place.name.endswith(".gz"):
        data = gzip.compress(data, 9, mtime=0)  # no time inside: the same trace is the same file
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(place)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{place} cannot be written: {error.strerror}") from None


def _columns(trace: Trace) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {
        "arrival_ns": trace.arrival_ns.tolist(),
        "prompt_tokens": trace.prompt_tokens.tolist(),
        "output_tokens": trace.output_tokens.tolist(),
    }
    if (trace.session >= 0).any():
        columns["session"] = _or_none(trace.session)
    if (trace.parent >= 0).any():
        columns["parent"] = _or_none(trace.parent)
        columns["think_ns"] = trace.after_parent_ns.tolist()
    if trace.priority.any():
        columns["priority"] = trace.priority.tolist()
    if trace.has_ids:
        columns["block_ids"] = [part.tolist() for part in np.split(trace.block_ids, trace.block_start[1:-1])]
        columns["block_ends"] = [part.tolist() for part in np.split(trace.all_ends(), trace.block_start[1:-1])]
        if trace.block_size:
            columns["block_size"] = [trace.block_size] * len(trace)
    return columns


def _or_none(column: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[object]:
    return [None if value < 0 else value for value in column.tolist()]


def _csv(columns: dict[str, list[object]]) -> str:
    def field(value: object) -> str:
        if value is None:
            return ""
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    lines = [",".join(columns), *(",".join(map(field, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"
