"""A sweep's results as one page: throughput against latency, the best rows, and what failed."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import polars as pl

from kvsim.progress import Update
from kvsim.report.charts.sweep import scatter
from kvsim.report.page import card, document
from kvsim.report.svg import FULL
from kvsim.report.swept import SHOWN, axes, best_rows, number, text

ROWS = 200
"""of the page's table"""


def swept_page(title: str, table: pl.LazyFrame, by: str, progress: Update | None = None) -> str:
    """The page: throughput against TTFT of all runs, the best rows, and what failed."""
    rows, varied = best_rows(table, by, ROWS), axes(table)
    numbers = list(dict.fromkeys((by, *SHOWN, "ttft_p50", "tpot_p50", "e2e_p50", "preemptions", "refused")))
    head = "".join(f"<th>{escape(name)}</th>" for name in [*varied, *numbers])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in
                         [*(text(row[n]) for n in varied), *(number(n, row[n]) for n in numbers)]) + "</tr>"
        for row in rows.to_dicts()
    )
    failed = table.filter(pl.col("status") == "failed").sort("key").select("key", "error").collect()
    lost = "".join(f"<li>{escape(key)}: {escape(error or '')}</li>" for key, error in failed.iter_rows())
    lead = f"{rows.height:,} best runs by {escape(by)}"
    sections: list[Callable[[], str]] = [
        lambda: f'<header><h1>{escape(title)}</h1><p class="lead">{lead}</p></header>',
        lambda: _scatter(rows, varied),
        lambda: f'<section><h2>Runs</h2><div class="card wide"><table><tr>{head}</tr>{body}</table></div></section>',
        lambda: f'<section><h2>Failed</h2><ul class="notes">{lost}</ul></section>' if lost else "",
    ]
    return document(title, sections, progress)


def _scatter(rows: pl.DataFrame, varied: list[str]) -> str:
    points = rows.filter((pl.col("ttft_p99") > 0) & (pl.col("output_tokens_per_s") > 0))
    if points.height < 2:
        return ""
    said = [", ".join(f"{name} {text(row[name])}" for name in varied) for row in points.to_dicts()]
    chart = scatter(points["ttft_p99"].to_list(), points["output_tokens_per_s"].to_list(), said)
    drawn = card("Output tokens a second against TTFT p99", chart, "A dot a run: hover to see which.", 300, FULL)
    return f"<section><h2>All runs</h2>{drawn}</section>"
