"""A sweep's results: the best rows, for a terminal."""

from __future__ import annotations

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.errors import InputError
from kvsim.registry import unknown
from kvsim.report.terminal import brief
from kvsim.scenario import fields
from kvsim.sweep.store import NUMBERS
from kvsim.units import format_count

MORE_IS_BETTER = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "completed", "prefix_hit_share",
                  "kv_tokens", "requests")
SHOWN = ("ttft_p99", "tpot_p99", "output_tokens_per_s")


def axes(table: pl.LazyFrame) -> list[str]:
    """Fields of the scenario that are not the same in all runs."""
    counts = table.select(pl.col(name).n_unique() for name in fields()).collect().row(0, named=True)
    return [name for name, count in counts.items() if count > 1]


def best_rows(table: pl.LazyFrame, by: str, top: int) -> pl.DataFrame:
    """The best finished runs by a column of numbers: what varies between runs, then the numbers."""
    if by not in NUMBERS:
        raise InputError(f"--by: {unknown('column', by, list(NUMBERS))}")
    done = table.filter(pl.col("status") == "done").sort(
        by, "key", descending=[by in MORE_IS_BETTER, False], nulls_last=True
    )
    return done.select("key", *axes(table), *NUMBERS).head(top).collect()


def swept_table(table: pl.LazyFrame, rows: pl.DataFrame, by: str) -> RenderableType:
    """The best rows, 80 columns wide."""
    counts = dict(table.group_by("status").len().collect().iter_rows())
    head = Text(f"{counts.get('done', 0):,} runs done, {counts.get('failed', 0):,} failed; best by {by}", style="bold")
    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    varied, numbers = axes(table), list(dict.fromkeys((by, *SHOWN)))
    for name in varied:
        grid.add_column(name, overflow="fold")
    for name in numbers:
        grid.add_column(name, justify="right", overflow="fold")
    for row in rows.to_dicts():
        grid.add_row(*(text(row[name]) for name in varied), *(number(name, row[name]) for name in numbers))
    return Group(head, Text(), grid)


def text(value: object) -> str:
    """What a run was asked for, in a cell."""
    return "–" if value is None else str(value).rsplit("/", 1)[-1]


def number(name: str, value: float | None) -> str:
    """One of a run's numbers, in a cell."""
    if value is None:
        return "–"
    return brief(value) if name.partition("_")[0] in ("ttft", "tpot", "itl", "e2e", "queue") else format_count(value)
