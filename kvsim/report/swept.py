"""A sweep's results: the best rows for a terminal, and a page."""

from __future__ import annotations

from html import escape

import numpy as np
import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.errors import InputError
from kvsim.registry import unknown
from kvsim.report.axes import linear_ticks, log_ticks
from kvsim.report.page import document
from kvsim.report.svg import Frame
from kvsim.report.terminal import brief
from kvsim.scenario import fields
from kvsim.sweep.store import NUMBERS
from kvsim.units import format_count

MORE_IS_BETTER = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "completed", "prefix_hit_share",
                  "kv_tokens", "requests")
SHOWN = ("ttft_p99", "tpot_p99", "output_tokens_per_s")
ROWS = 200
"""of the page's table"""


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
        grid.add_row(*(_text(row[name]) for name in varied), *(_number(name, row[name]) for name in numbers))
    return Group(head, Text(), grid)


def swept_page(title: str, table: pl.LazyFrame, by: str) -> str:
    """The page: throughput against TTFT of all runs, the best rows, and what failed."""
    rows, varied = best_rows(table, by, ROWS), axes(table)
    numbers = list(dict.fromkeys((by, *SHOWN, "ttft_p50", "tpot_p50", "e2e_p50", "preemptions", "refused")))
    head = "".join(f"<th>{escape(name)}</th>" for name in [*varied, *numbers])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in
                         [*(_text(row[n]) for n in varied), *(_number(n, row[n]) for n in numbers)]) + "</tr>"
        for row in rows.to_dicts()
    )
    failed = table.filter(pl.col("status") == "failed").sort("key").select("key", "error").collect()
    lost = "".join(f"<li>{escape(key)}: {escape(error or '')}</li>" for key, error in failed.iter_rows())
    sections = [
        f"<header><h1>{escape(title)}</h1><p class='lead'>{rows.height:,} best runs by {escape(by)}</p></header>",
        _scatter(rows, varied),
        f'<section><h2>Runs</h2><div class="card wide"><table><tr>{head}</tr>{body}</table></div></section>',
        f'<section><h2>Failed</h2><ul class="notes">{lost}</ul></section>' if lost else "",
    ]
    return document(title, filter(None, sections))


def _scatter(rows: pl.DataFrame, varied: list[str]) -> str:
    points = rows.filter((pl.col("ttft_p99") > 0) & (pl.col("output_tokens_per_s") > 0))
    if points.height < 2:
        return ""
    x, y = points["ttft_p99"].to_numpy(), points["output_tokens_per_s"].to_numpy()
    low, high = float(x.min()) / 1.2, float(x.max()) * 1.2
    frame = Frame.make((low, high), (0, 1.05 * float(y.max())), log_x=True)
    marks = [
        frame.dot(float(a), float(b), "s0", ", ".join(f"{name} {_text(row[name])}" for name in varied))
        for a, b, row in zip(x, y, points.to_dicts(), strict=True)
    ]
    chart = frame.draw("output tokens a second against TTFT p99", log_ticks(low, high),
                       linear_ticks(float(np.max(y))), marks)
    return f'<section><h2>Output tokens a second against TTFT p99</h2><div class="card">{chart}</div></section>'


def _text(value: object) -> str:
    return "–" if value is None else str(value).rsplit("/", 1)[-1]


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return brief(value) if name.partition("_")[0] in ("ttft", "tpot", "itl", "e2e", "queue") else format_count(value)
