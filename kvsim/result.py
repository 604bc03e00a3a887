"""A Result: what one run did, as five tables and a dictionary; a folder of Parquet files and run.json on disk.

The Result is the only thing between the simulator and whoever looks at it: metrics, reports, the app. A live server
measured by `kvsim measure` writes the same, so "predicted against measured" compares two Results.
Times are int64 nanoseconds from the trace's start, sizes int64 bytes, lengths tokens; null where undefined.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kvsim.errors import InputError

SCHEMA = 1
STATUS = ("completed", "refused", "failed")
"""What became of a request; `from_columns` takes the index."""

REQUESTS = (
    "id", "session", "replica", "arrival_ns", "prompt_tokens", "output_tokens", "status", "reason", "scheduled_ns",
    "first_token_ns", "last_token_ns", "cached_tokens", "recomputed_tokens", "preemptions",
)  # fmt: skip
MEMORY = ("used", "reserved", "internal", "cached", "external", "free")
"""The categories that add up to the KV pool, in the order they are drawn."""

TIMELINE = ("t_ns", "replica", "running", "waiting", *MEMORY, "shared_saved", "largest_free")
STEPS = ("start_ns", "end_ns", "steps", "replica", "decode", "chunks", "prefill_tokens", "attended")
ITL = ("gap_ns", "count")
MEMORY_MAP = ("t_ns", "replica", "start", "end", "row")
_TABLES = {"requests": REQUESTS, "timeline": TIMELINE, "steps": STEPS, "itl": ITL,
           "memory_map": MEMORY_MAP}  # fmt: skip
_MAY_BE_NULL = ("session", "replica", "scheduled_ns", "first_token_ns", "last_token_ns")
Columns = Mapping[str, Any]
"""column name → int64 array, or anything NumPy turns into one"""


@dataclass(frozen=True, eq=False)
class Result:
    """One run. `run` is plain JSON data:

    * `scenario`: what was asked for; `provenance`: {device, tier, engine, model, seed, version}
    * `memory_plan`: the object of `kvsim memory --json` (per GPU), or absent (a measured run)
    * `counters`: {prefill, decode: tokens computed; evicted_blocks; swapped_bytes}
    * `interval`: {metric: [low, high]}, absent where none was asked for
    * `slo`: {ttft, tpot, e2e or queue: limit in seconds}, absent where none was asked for
    * `notes`: sentences to show (the trace was sorted, …); `dropped`: {reason: rows the trace reader dropped}

    Tables: `requests`, one row a request, refused ones too; `timeline`, the state from `t_ns` to the next row of the
    same replica; `steps`, one row a stride (`decode` sequences, `attended` tokens and `prefill_tokens` of its first
    step); `itl`, every gap between two tokens of a request, pooled: (gap_ns, count); `memory_map`, which bytes of the
    pool are whose at a few moments (row −1: idle prefix blocks).
    """

    run: dict[str, Any]
    requests: pl.DataFrame
    timeline: pl.DataFrame
    steps: pl.DataFrame
    itl: pl.DataFrame
    memory_map: pl.DataFrame

    @classmethod
    def from_columns(
        cls,
        run: dict[str, Any],
        requests: Columns,
        timeline: Columns,
        steps: Columns,
        itl: tuple[Any, Any],
        reasons: Sequence[str] = (),
        memory_map: Columns | None = None,
    ) -> Result:
        """A Result from the Recorder's raw columns.

        `requests`, `timeline` and `steps` map each column of REQUESTS, TIMELINE and STEPS to an int64 array or list;
        −1 in session, replica or a time means "undefined". `status` holds indices into STATUS, `reason` indices into
        `reasons` (−1: none). `itl` is (gaps in ns, their counts); gaps may repeat and come in any order.
        """
        tables = {
            "requests": {name: requests[name] for name in REQUESTS},
            "timeline": {name: timeline[name] for name in TIMELINE},
            "steps": {name: steps[name] for name in STEPS},
            "itl": dict(zip(ITL, itl, strict=True)),
            "memory_map": memory_map or dict.fromkeys(MEMORY_MAP, ()),
        }
        frames = {name: pl.DataFrame({c: _int64(v) for c, v in columns.items()}) for name, columns in tables.items()}
        frames["requests"] = frames["requests"].with_columns(
            *(pl.when(pl.col(c) >= 0).then(pl.col(c)).alias(c) for c in _MAY_BE_NULL),
            _words("status", STATUS),
            _words("reason", reasons),
        )
        frames["itl"] = frames["itl"].group_by("gap_ns").agg(pl.col("count").sum()).sort("gap_ns")
        return cls(run, **frames)

    @property
    def summary(self) -> dict[str, Any]:
        """The object of `kvsim simulate --json`."""
        from kvsim.metrics import summary

        return summary(self)

    @cached_property
    def latency(self) -> dict[str, dict[str, float | None]]:
        """Distributions of ttft, tpot, itl, e2e and queue, in seconds: the slow part of the summary, made once."""
        from kvsim.metrics import latency

        return latency(self)

    def save(self, folder: Path | str) -> None:
        """Write the folder at once or not at all: under a temporary name beside it, then renamed.

        Raises InputError where `folder` holds something other than a Result, has no name, or the disk is full.
        """
        folder = Path(folder)
        if not folder.name:
            raise InputError(f"{folder} is the folder one stands in: name one in it")
        if folder.exists() and not _replaceable(folder):
            raise InputError(f"{folder} exists and is no Result folder: choose another name or remove it")
        folder.parent.mkdir(parents=True, exist_ok=True)
        new, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{kind}.tmp") for kind in ("new", "old"))
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            for name in _TABLES:
                _write(getattr(self, name), new / f"{name}.parquet")
            document = {"schema": SCHEMA, **self.run, "summary": self.summary}
            (new / "run.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)

    @classmethod
    def load(cls, folder: Path | str) -> Result:
        """Read a folder that `save` wrote. Raises InputError naming the file that is missing or not understood."""
        folder = Path(folder)
        file = folder / "run.json"
        if not file.is_file():
            raise InputError(f"{folder} is no Result folder: it has no run.json (`simulate --out` writes one)")
        try:
            run = json.loads(file.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{file} is not JSON: {error}") from None
        schema = run.get("schema") if isinstance(run, dict) else None
        if not isinstance(schema, int) or schema > SCHEMA:
            raise InputError(f"{file} has schema {schema!r}; this version of kvsim reads schema {SCHEMA}")
        where = run.get("provenance")
        if not (isinstance(where, dict) and isinstance(where.get("device"), str)):
            raise InputError(f"{file} does not say on what it ran (provenance.device): the Result folder is not whole")
        tables = {name: _read(folder / f"{name}.parquet", columns) for name, columns in _TABLES.items()}
        return cls({key: value for key, value in run.items() if key not in ("schema", "summary")}, **tables)


def _int64(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.ascontiguousarray(values, np.int64)


def _words(column: str, words: Sequence[str]) -> pl.Expr:
    """Indices into `words` as strings; −1 as null."""
    return pl.col(column).replace_strict(list(range(len(words))), list(words), default=None, return_dtype=pl.String)


def _replaceable(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "run.json").is_file() or not any(folder.iterdir()))


def _write(frame: pl.DataFrame, file: Path) -> None:
    try:
        frame.write_parquet(file, compression_level=1)
    except pl.exceptions.PolarsError as error:  # a full disk, and whatever else the file system says
        raise InputError(f"{file} can't be written: {str(error).splitlines()[0]}") from None


def _read(file: Path, columns: Sequence[str]) -> pl.DataFrame:
    if not file.is_file():
        raise InputError(f"{file} is missing: the Result folder is not whole")
    try:
        frame = pl.read_parquet(file)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{file} is not a readable Parquet file: {str(error).splitlines()[0]}") from None
    if missing := [name for name in columns if name not in frame.columns]:
        raise InputError(f"{file} lacks the column {missing[0]!r}")
    return frame
