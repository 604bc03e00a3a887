"""Where the results of a sweep are kept: one Parquet file of one row a run, named by the scenario's content hash.

A file appears whole or not at all, so a sweep that is killed loses nothing that was finished; and a scenario has one
name, so nothing is ever there twice. Rows hold no times and no places: the same scenarios give the same bytes, whoever
ran them in whatever order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kvsim.errors import InputError
from kvsim.metrics import LATENCIES
from kvsim.scenario import Scenario, fields

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
NUMBERS: dict[str, tuple[str, ...]] = {
    "requests": ("requests", "total"), "completed": ("requests", "completed"), "refused": ("requests", "refused"),
    "duration_s": ("duration_s",), "requests_per_s": ("throughput", "requests_per_s"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "total_tokens_per_s": ("throughput", "total_tokens_per_s"),
    **{f"{name}_{at}": ("latency_s", name, at) for name in LATENCIES for at in STATISTICS},
    "kv_tokens": ("memory", "kv_tokens"), "peak_used_share": ("memory", "peak_used_share"),
    "prefix_hit_share": ("cache", "prefix_hit_share"), "preemptions": ("cache", "preemptions"),
    "recomputed_tokens": ("computed_tokens", "recomputed"), "steps": ("steps",),
}
"""columns of numbers (float64; latencies in seconds) → where they are in a summary"""


@dataclass(frozen=True)
class Store:
    """A folder of results."""

    folder: Path

    @property
    def _runs(self) -> Path:
        return self.folder / "runs"

    def keys(self, status: str | None = None) -> set[str]:
        """Hashes of the scenarios that are here, or of those that are `done` or `failed`."""
        if status is None:
            return {file.stem for file in self._runs.glob("*.parquet")}
        if not self.keys():
            return set()
        return set(self.table().filter(pl.col("status") == status).select("key").collect()["key"].to_list())

    def put(self, scenario: Scenario, summary: Mapping[str, Any] | None, error: str | None = None) -> None:
        """Keep a run: its summary, or why there is none."""
        self._runs.mkdir(parents=True, exist_ok=True)
        file = self._runs / f"{scenario.key}.parquet"
        new = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        try:
            row(scenario, summary, error).write_parquet(new)
            new.replace(file)
        finally:
            new.unlink(missing_ok=True)

    def table(self) -> pl.LazyFrame:
        """All runs, one row each, read when collected. Columns: key, status, error, every field of Scenario, the
        NUMBERS, and the whole scenario and summary as JSON."""
        if not self.keys():
            raise InputError(f"{self.folder} holds no results of a sweep: `kvsim sweep FILE --out DIR` writes them")
        return pl.scan_parquet(self._runs / "*.parquet")


def row(scenario: Scenario, summary: Mapping[str, Any] | None, error: str | None) -> pl.DataFrame:
    """One run as a row, of the same columns and types whatever it is."""
    asked = scenario.model_dump(mode="json")
    values: dict[str, Any] = {
        "key": scenario.key, "status": "failed" if summary is None else "done", "error": error,
        **{name: asked[name] for name in fields()},
        **{name: None if summary is None else _number(summary, path) for name, path in NUMBERS.items()},
        "scenario": json.dumps(asked, sort_keys=True),
        "summary": None if summary is None else json.dumps(summary, sort_keys=True, allow_nan=False),
    }
    return pl.DataFrame([values], schema={name: _type(name) for name in values})


def _number(summary: Mapping[str, Any], path: tuple[str, ...]) -> float | None:
    found: Any = summary
    for key in path:
        found = (found or {}).get(key)
    return None if found is None else float(found)


def _type(name: str) -> pl.DataType | type[pl.DataType]:
    if name in NUMBERS:
        return pl.Float64
    field = fields().get(name)
    said = str(field.annotation) if field is not None else "str"
    for word, kind in (("bool", pl.Boolean), ("float", pl.Float64), ("int", pl.Int64)):
        if word in said:
            return kind
    return pl.String
