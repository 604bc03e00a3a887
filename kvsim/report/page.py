"""One self-contained HTML page about one or several runs: no script, no network, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from kvsim import __version__
from kvsim.metrics import DEFINITIONS
from kvsim.progress import Update
from kvsim.report.charts import latency, memory, operations
from kvsim.report.columns import SHARES, SPEED, WORK, Column
from kvsim.report.data import end_of, pool_bytes
from kvsim.report.files import write_text
from kvsim.report.palette import MEMORY, SERIES, trust
from kvsim.report.svg import FULL, WIDTH, Chart, svg
from kvsim.report.terminal import brief, latency_name, span, trace_name
from kvsim.result import Result
from kvsim.units import format_bytes, format_count

Runs = Mapping[str, Result]
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_TALL, _LOW = 230, 180
"""heights of charts"""


def write_page(file: Path, runs: Runs, progress: Update | None = None) -> None:
    """Write the page whole or not at all."""
    write_text(file, page(runs, progress))


def page(runs: Runs, progress: Update | None = None) -> str:
    """The page as text."""
    first = next(iter(runs.values()))
    where: Mapping[str, Any] = first.run.get("provenance") or {}
    title = f"{where.get('model') or 'a model'} on {where.get('device')}"
    sections = [partial(_header, title, runs, where), *(partial(part, runs) for part in _SECTIONS)]
    return document(title, sections, progress)


def document(title: str, sections: Sequence[Callable[[], str]], progress: Update | None = None) -> str:
    """A whole page of these sections, with the reports' style; what is empty is left out. `progress` is told before
    each is drawn, which may take a second."""
    drawn = []
    for number, draw in enumerate(sections):
        if progress is not None:
            progress(number, len(sections))
        drawn.append(draw())
    style = resources.files("kvsim.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · kvsim</title><style>{style}</style></head>\n<body><main>\n"
        + "\n".join(filter(None, drawn))
        + f"\n<footer>Made by kvsim {__version__}. This page needs no network.</footer>\n</main></body></html>\n"
    )


def _header(title: str, runs: Runs, where: Mapping[str, Any]) -> str:
    first = next(iter(runs.values()))
    requests = first.summary["requests"]
    what = "One run" if len(runs) == 1 else f"{len(runs)} runs side by side"
    trace = f" · {requests['total']:,} requests of {escape(trace_name(first.run) or 'a trace')}"
    engine = f" · {escape(str(where['engine']))}" if where.get("engine") else ""
    tier = where.get("tier") or "unknown"
    banner = trust(where, "The origin of this device profile is not known.")
    notes = dict.fromkeys(note for result in runs.values() for note in result.run.get("notes", ()))
    listed = f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul>' if notes else ""
    return (
        f'<header><h1>{escape(title)}</h1><p class="lead">{what}{engine}{trace}</p>'
        f'<p class="banner {escape(tier)}">{escape(banner)}</p>{listed}</header>'
    )


def _speed(runs: Runs) -> str:
    hint = "Latency over completed requests; throughput from the first arrival to the last completion."
    intervals = _intervals(runs)
    return section("Speed", hint, _wide(_table(runs, SPEED)), intervals)


def _intervals(runs: Runs) -> str:
    """The 90 % intervals, where they were asked for."""
    found = {name: result.summary.get("interval") for name, result in runs.items()}
    keys = list(dict.fromkeys(key for interval in found.values() for key in interval or ()))
    if not keys:
        return ""
    rows = []
    for name, interval in found.items():
        texts = [span((interval or {}).get(k), format_count if k.endswith("_s") else brief) for k in keys]
        cells = "".join(f'<td class="range">{text}</td>' for text in texts)
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    head = "".join(f"<th>{escape(metric_name(key))}</th>" for key in keys)
    return _wide(f"<table><tr><th>90 % interval</th>{head}</tr>{''.join(rows)}</table>")


def metric_name(key: str) -> str:
    """`ttft_p50` → `TTFT p50`."""
    name, _, at = key.rpartition("_")
    return f"{latency_name(name)} {at}" if at.startswith("p") and at[1:].isdigit() else "output tokens/s"


def _latency(runs: Runs) -> str:
    drawn = {latency_name(metric): latency.cdf(runs, metric) for metric in _LATENCIES}
    cards = [card(name, chart, DEFINITIONS[name], _TALL) for name, chart in drawn.items() if chart is not None]
    hint = "Share of requests (of gaps, for ITL) that took at most so long; on a logarithmic axis. Dots: median, p99."
    return section("Latency distributions", hint, _policies(runs), _grid(cards)) if cards else ""


def _memory(runs: Runs) -> str:
    end = end_of(runs)
    drawn = {name: memory.over_time(result, end) for name, result in runs.items()}
    cards = _each(drawn)
    shares = [_wide(_table(runs, SHARES)), _key({name: f"{name}: {kind.help}" for name, kind in MEMORY.items()})]
    plan = _plan(next(iter(runs.values())))
    if not cards:
        return section("Memory", "No run keeps a cache.", plan)
    return section("Memory", DEFINITIONS["memory shares"], *shares, _grid(cards), plan)


def _plan(result: Result) -> str:
    """The bytes of one GPU before the first request."""
    plan = result.run.get("memory_plan")
    if not plan or not plan.get("total_bytes"):
        return ""
    name = str((result.run.get("provenance") or {}).get("device") or "GPU")
    parts = memory.parts(plan)
    words = {f"s{number}": f"{part} {format_bytes(size)}" for number, (part, size) in enumerate(parts.items())}
    drawn = svg(memory.plan({name: plan}), "the bytes of one GPU", 34, FULL)
    return f'<figure class="card wide"><h3>One GPU</h3>{_key(words)}{drawn}</figure>'


def _map(runs: Runs) -> str:
    end = end_of(runs)
    high = max(map(pool_bytes, runs.values()))
    drawn = {name: memory.address_map(result, end_s=end, high=high) for name, result in runs.items()}
    cards = _each(drawn)
    hint = (
        "Addresses of the first replica's pool over time, up to its size. A request keeps its colour (colours repeat); "
        "grey are idle prefix blocks, blank bytes are nobody's."
    )
    return section("Memory map", hint, _grid(cards)) if cards else ""


def _load(runs: Runs) -> str:
    end = end_of(runs)
    hints = {"running": "Requests in the batch, all replicas together.", "waiting": "Requests in the queue."}
    cards = [card(name.title(), operations.load(runs, name, end), hint, _LOW) for name, hint in hints.items()]
    return section("Batch and queue", "Means over equal bins of time.", _policies(runs), _grid(cards))


def _work(runs: Runs) -> str:
    return section("Work", DEFINITIONS["computed tokens"], _wide(_table(runs, WORK)))


def _about(runs: Runs) -> str:
    cards = []
    for name, result in runs.items():
        facts = {**(result.run.get("scenario") or {}), **(result.run.get("provenance") or {})}
        rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items() if v is not None)
        cards.append(f'<div class="card"><h3>{escape(name)}</h3><dl>{rows}</dl></div>')
    return section("Scenario and provenance", "What was asked for, and where the numbers come from.", _grid(cards))


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of texts in a card, each row's first cell its name."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return _wide(f"<table><tr>{titles}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")


def _table(runs: Runs, columns: Iterable[Column]) -> str:
    summaries = {name: result.summary for name, result in runs.items()}
    best = {column.title: column.best(summaries.values()) for column in columns}
    head = "".join(f"<th>{escape(column.heading)}</th>" for column in columns)
    rows = []
    for name, summary in summaries.items():
        texts = [(column.text(summary), best[column.title]) for column in columns]
        cells = "".join(f'<td class="best">{t}</td>' if t == mark else f"<td>{t}</td>" for t, mark in texts)
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def section(title: str, hint: str, *content: str) -> str:
    """A part of a page: its title, what it is and says, and what it holds."""
    return f'<section><h2>{escape(title)}</h2><p class="hint">{escape(hint)}</p>{"".join(content)}</section>'


def _wide(table: str) -> str:
    return f'<div class="card wide">{table}</div>'


def _grid(cards: list[str]) -> str:
    return f'<div class="grid">{"".join(cards)}</div>'


def card(title: str, chart: Chart, hint: str = "", height: int | None = None, width: int = WIDTH) -> str:
    """A chart under its title; what it is and says is in `hint`. One that has a row for itself is FULL wide."""
    text = f'<p class="hint">{escape(hint)}</p>' if hint else ""
    return f'<figure class="card"><h3>{escape(title)}</h3>{text}{svg(chart, title, height, width)}</figure>'


def _each(drawn: Mapping[str, Chart | None]) -> list[str]:
    """A card a run, of those that have something to draw."""
    found = {name: chart for name, chart in drawn.items() if chart is not None}
    return [card(name, chart, height=_LOW, width=WIDTH if len(found) > 1 else FULL) for name, chart in found.items()]


def _policies(runs: Runs) -> str:
    return series_key(runs) if len(runs) > 1 else ""


def series_key(names: Iterable[str]) -> str:
    """The legend of charts whose n-th line has the n-th colour."""
    items = "".join(
        f'<span><i class="s{number % len(SERIES)}"></i>{escape(name)}</span>' for number, name in enumerate(names)
    )
    return f'<p class="key">{items}</p>'


def _key(words: Mapping[str, str]) -> str:
    items = "".join(f'<span><i class="{style}"></i>{escape(text)}</span>' for style, text in words.items())
    return f'<p class="key">{items}</p>'


_SECTIONS = (_speed, _latency, _memory, _map, _load, _work, _about)
