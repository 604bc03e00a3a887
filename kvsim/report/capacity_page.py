"""`kvsim plan`'s answer as one page: the verdict, every candidate, load curves and the Pareto front."""

from __future__ import annotations

from functools import partial
from html import escape
from pathlib import Path

from kvsim.plan import Answer
from kvsim.progress import Update
from kvsim.report.capacity import demands, span, verdict
from kvsim.report.charts import load
from kvsim.report.charts.load import Tried
from kvsim.report.files import write_text
from kvsim.report.page import card, document, metric_name, series_key
from kvsim.report.palette import TIERS
from kvsim.scenario import Scenario
from kvsim.units import format_count

_TALL = 300
_BEST = ' class="best"'


def write_capacity_page(file: Path, answer: Answer, scenario: Scenario, progress: Update | None = None) -> None:
    """Write the page whole or not at all."""
    title = f"Capacity plan for {scenario.model}"
    sections = [partial(_header, title, answer, scenario), partial(_candidates, answer), partial(_charts, answer)]
    write_text(file, document(title, sections, progress))


def _header(title: str, answer: Answer, scenario: Scenario) -> str:
    best = answer.answer
    tier = best.tier if best and best.tier else "unknown"
    why = f"Limit: {best.limit}. {best.reason}." if best else f"{answer.too_short.reason}." if answer.too_short else ""
    listed = "".join(f"<li>{escape(note)}</li>" for note in answer.notes)
    return (
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(verdict(answer))}</p>'
        f'<p class="lead">{escape(why)}</p>'
        f'<p class="hint">{escape(scenario.trace)} · {escape(demands(answer))} · steady traffic, '
        f"judged by {answer.requests:,} of {answer.trace_requests:,} requests</p>"
        f'<p class="banner {escape(tier)}">{escape(TIERS.get(tier, "No answer."))}</p>'
        + (f'<ul class="notes">{listed}</ul>' if listed else "") + "</header>"
    )


def _candidates(answer: Answer) -> str:
    head = ("requests/s", "interval", "replicas", "GPUs", "cost/M", "kWh/M", "limit", "why")
    rows = []
    for number, c in enumerate(answer.candidates):
        texts = [_number(c.rate_per_replica), span(c, "rate_per_replica", format_count), _number(c.replicas),
                 _number(c.gpus), _short(c.cost_per_million_output_tokens), _short(c.kwh_per_million_output_tokens),
                 c.limit or "not reachable"]
        best = number == answer.best
        cells = "".join(f'<td{_BEST if best and text.strip("–") else ""}>{escape(text)}</td>' for text in texts)
        rows.append(f'<tr><td>{escape(c.label)}</td>{cells}<td class="why">{escape(c.reason)}</td></tr>')
    titles = "".join(f"<th>{title}</th>" for title in head)
    table = f"<table><tr><th></th>{titles}</tr>{''.join(rows)}</table>"
    first = "The best costs least. " if answer.by == "cost" else "The best needs the fewest GPUs. "
    hint = (
        f"{first if answer.answer else ''}Requests/s are of one replica; M: a million output tokens; kWh at the "
        "boards' power limit. Intervals (90 %): the cost model's error and other people."
    )
    return f'<section><h2>Candidates</h2><p class="hint">{hint}</p><div class="card wide">{table}</div></section>'


def _number(value: float | None) -> str:
    return "–" if value is None else format_count(value)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _charts(answer: Answer) -> str:
    names = [c.label for c in answer.candidates]
    tried = [
        Tried(c.label, p.rate, p.user_tokens_per_s, p.output_tokens_per_s / c.tp, ", ".join(p.missed))
        for c in answer.candidates
        for p in c.curve
        if p.user_tokens_per_s and p.output_tokens_per_s
    ]
    if not tried:
        return ""
    cards = [card("Tokens a second: a GPU against a user", load.pareto(tried, names), "Every simulated rate.", _TALL)]
    for objective in answer.objectives.latency:
        name = objective.name
        found = {c.label: [(p.rate, v) for p in c.curve if (v := p.values.get(name))] for c in answer.candidates}
        if any(found.values()):
            knees = {c.label: c.rate_per_replica for c in answer.candidates if c.rate_per_replica}
            title = metric_name(name)
            hint = "Dashed: the limit. Dotted: the rate that a replica holds."
            cards.append(card(title, load.curve(found, title, objective.limit_s, knees), hint, _TALL))
    return f'<section><h2>Load curves</h2>{series_key(names)}<div class="grid">{"".join(cards)}</div></section>'
