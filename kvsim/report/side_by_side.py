"""Several runs as tables for a terminal of 80 columns: one row a run, the best of each column marked."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.report.columns import SHARES, SPEED, WORK, Column, Summary
from kvsim.report.terminal import heading, memory_bar, notes
from kvsim.result import Result

Runs = Mapping[str, Result]
_BAR = 14


def side_by_side(runs: Runs) -> RenderableType:
    """Everything `kvsim compare` prints: speed, memory, work."""
    first = next(iter(runs.values()))
    said = dict.fromkeys(note for result in runs.values() for note in result.run.get("notes", ()))
    summaries = {name: result.summary for name, result in runs.items()}
    return Group(
        heading(first, f"{len(runs)} policies"),
        Text(),
        _table("Speed", SPEED, summaries),
        Text(),
        _table("Memory", SHARES, summaries, bar=True),
        Text("Mean share of the KV pool over time. External: outside the largest hole.", style="dim"),
        Text(),
        _table("Work", WORK, summaries),
        *notes({"notes": list(said), "dropped": first.run.get("dropped")}),
        Text.from_markup("[bold green]★[/] best of its column", style="dim"),
    )


def _table(title: str, columns: tuple[Column, ...], summaries: Mapping[str, Summary], bar: bool = False) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column(title, style="bold", min_width=min(16, max(map(len, summaries))), vertical="bottom")
    if bar:
        table.add_column("", width=_BAR)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True, vertical="bottom")
    best = [column.best(summaries.values()) for column in columns]
    for name, summary in summaries.items():
        cells = [_cell(column.text(summary), mark) for column, mark in zip(columns, best, strict=True)]
        bars = [memory_bar(summary["memory"]["mean"], _BAR)] if bar else []
        table.add_row(name, *bars, *cells)
    if len(summaries) == 2 and not bar:
        before, after = summaries.values()
        changes = [_change(column.value(before), column.value(after)) for column in columns]
        table.add_row("change", *changes, style="dim not bold")
    return table


def _cell(text: str, best: str | None) -> Text:
    return Text(f"{text}★", style="bold green") if text == best else Text(f"{text} ")


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return ""
    return f"{after / before - 1:+.1%}"
