"""Azure LLM inference traces (Azure/AzurePublicDataset, CC-BY-4.0): wall clock, prompt and output tokens.

2023: `2023-11-16 18:17:03.9799600`, seven digits, CRLF. 2024: `2024-05-12 00:00:00.001163+00:00`, and no fraction at
all where it is zero.
"""

from __future__ import annotations

import numpy as np

from kvsim.errors import InputError
from kvsim.trace.build import Rows, finish
from kvsim.trace.files import Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.formats.table import Table, has_columns
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_S

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SECONDS = len("2023-11-16 18:17:03")
_REST = r"^(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?$"


@FORMATS("azure")
class Azure(TraceFormat):
    about = "Azure LLM inference traces, 2023 and 2024 (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)"
    columns = _COLUMNS

    @staticmethod
    def sniff(source: Source) -> bool:
        return source.single and has_columns(source.only(), _COLUMNS)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        table = Table(source.only(), _COLUMNS)
        rows = Rows(_wall_clock(table), table.tokens("ContextTokens"), table.tokens("GeneratedTokens"))
        return finish(rows, source.name, "azure", where=table.where)


def _wall_clock(table: Table) -> Int:
    """Nanoseconds since 1970, exact: fractions are read as digits, not as floats."""
    import polars as pl

    text = table.text("TIMESTAMP").str.strip_chars()
    whole = text.str.slice(0, _SECONDS).str.replace("T", " ", literal=True)
    seconds = whole.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False).cast(pl.Int64) // 1000
    rest = text.str.slice(_SECONDS)
    known = rest.str.contains(_REST)
    bad = seconds.is_null() | ~known.fill_null(False)
    if bad.any():
        row = int(bad.arg_max() or 0)
        said = "missing" if text[row] is None else repr(text[row])
        raise InputError(f"{table.where(row)}: TIMESTAMP is {said}, it must be like 2023-11-16 18:17:03.9799600")
    fraction = rest.str.extract(_REST, 1).fill_null("").str.pad_end(9, "0").cast(pl.Int64)
    zone = rest.str.extract(_REST, 2)
    offset = _zone_seconds(zone.to_list()) if zone.null_count() < len(zone) else np.zeros(1, np.int64)
    since: Int = seconds.to_numpy()
    parts: Int = fraction.to_numpy()
    return (since - offset) * NS_PER_S + parts


def _zone_seconds(zones: list[str | None]) -> Int:
    known: dict[str | None, int] = {None: 0, "Z": 0}
    for zone in set(zones) - known.keys():
        assert zone is not None
        digits = zone[1:].replace(":", "")
        known[zone] = (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
    return np.array([known[zone] for zone in zones], np.int64)
