"""`kvsim plan`'s answer as one page: the verdict, every candidate, load curves and the Pareto front."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from kvsim.plan import Answer, Candidate
from kvsim.report.axes import linear_ticks
from kvsim.report.capacity import demands, span, verdict
from kvsim.report.page import document, write_text
from kvsim.report.palette import SERIES, TIERS
from kvsim.report.svg import Frame
from kvsim.scenario import Scenario
from kvsim.units import format_count


def write_capacity_page(file: Path, answer: Answer, scenario: Scenario) -> None:
    """Write the page whole or not at all."""
    title = f"Capacity plan for {scenario.model}"
    sections = [_header(title, answer, scenario), _candidates(answer), _charts(answer)]
    write_text(file, document(title, filter(None, sections)))


def _header(title: str, answer: Answer, scenario: Scenario) -> str:
    best = answer.answer
    tier = best.tier if best and best.tier else "unknown"
    why = f"Limit: {best.limit}. {best.reason}." if best else ""
    listed = "".join(f"<li>{escape(note)}</li>" for note in answer.notes)
    return (
        f'<header><h1>{escape(title)}</h1><p class="lead">{escape(verdict(answer))}</p>'
        f'<p class="lead">{escape(why)}</p>'
        f'<p class="hint">{escape(scenario.trace)} · {escape(demands(answer))} · steady traffic, '
        f"judged by {answer.requests:,} of {answer.trace_requests:,} requests</p>"
        f'<p class="banner {escape(tier)}">{escape(TIERS.get(tier, "Not reachable."))}</p>'
        + (f'<ul class="notes">{listed}</ul>' if listed else "") + "</header>"
    )


def _candidates(answer: Answer) -> str:
    head = ("requests/s a replica", "interval", "replicas", "GPUs", "cost a million output tokens",
            "kWh a million at the power limit", "limit", "why")
    rows = []
    for number, c in enumerate(answer.candidates):
        texts = [_number(c.rate_per_replica), span(c, "rate_per_replica", format_count), _number(c.replicas),
                 _number(c.gpus), _short(c.cost_per_million_output_tokens), _short(c.kwh_per_million_output_tokens),
                 c.limit or "not reachable", c.reason]
        mark = ' class="best"' if number == answer.best else ""
        cells = "".join(f"<td{mark}>{escape(text)}</td>" for text in texts)
        rows.append(f"<tr><td>{escape(c.label)}</td>{cells}</tr>")
    titles = "".join(f"<th>{title}</th>" for title in head)
    table = f"<table><tr><th></th>{titles}</tr>{''.join(rows)}</table>"
    hint = f"The best has the lowest {answer.by}. Intervals: the cost model's 90 % error and other parts of the trace."
    return f'<section><h2>Candidates</h2><p class="hint">{hint}</p><div class="card wide">{table}</div></section>'


def _number(value: float | None) -> str:
    return "–" if value is None else format_count(value)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _charts(answer: Answer) -> str:
    able = [(i, c) for i, c in enumerate(answer.candidates) if any(p.user_tokens_per_s for p in c.curve)]
    if not able:
        return ""
    names = "".join(f'<span><i class="s{i % len(SERIES)}"></i>{escape(c.label)}</span>' for i, c in able)
    cards = [_card("Tokens a second: a GPU against a user", _front(answer, able),
                   "Every simulated rate; the line joins what nothing beats in both.")]
    cards += [_card(f"{o.name}", chart, "Against requests a second a replica; the level line is the limit.")
              for o in answer.objectives.latency if (chart := _curve(able, o.name, o.limit_s))]
    return f'<section><h2>Load curves</h2><p class="key">{names}</p><div class="grid">{"".join(cards)}</div></section>'


def _card(title: str, chart: str, hint: str) -> str:
    return f'<figure class="card" style="margin:0"><h3>{escape(title)}</h3><p class="hint">{hint}</p>{chart}</figure>'


def _front(answer: Answer, able: list[tuple[int, Candidate]]) -> str:
    points = [(i, c, p) for i, c in able for p in c.curve if p.user_tokens_per_s and p.output_tokens_per_s]
    right = 1.05 * max(p.user_tokens_per_s or 0 for _, _, p in points)
    top = 1.05 * max((p.output_tokens_per_s or 0) / c.tp for _, c, p in points)
    frame = Frame.make((0, right), (0, top))
    front = answer.pareto()
    x, y = (np.array([getattr(p, name) for p in front]) for name in ("user_tokens_per_s", "gpu_tokens_per_s"))
    marks = [frame.line(x, y, "s0", "Pareto front")]
    marks += [
        frame.dot(p.user_tokens_per_s or 0, (p.output_tokens_per_s or 0) / c.tp, f"s{i % len(SERIES)}",
                  f"{c.label} at {p.rate:.3g} requests/s{'' if p.held else ': misses ' + ', '.join(p.missed)}")
        for i, c, p in points
    ]
    return frame.draw("tokens a second of a GPU against a user", linear_ticks(right), linear_ticks(top), marks)


def _curve(able: list[tuple[int, Candidate]], name: str, limit: float) -> str:
    found = [(i, c, [(p.rate, v) for p in c.curve if (v := p.values.get(name)) is not None]) for i, c in able]
    found = [entry for entry in found if entry[2]]
    if not found:
        return ""
    right = 1.05 * max(rate for _, _, points in found for rate, _ in points)
    top = min(1.1 * max(limit, max(v for _, _, points in found for _, v in points)), 3 * limit)
    frame = Frame.make((0, right), (0, top))
    marks = [frame.line(np.array([0.0, right]), np.array([limit, limit]), "s4", f"limit {limit:g} s")]
    for i, c, points in found:
        rates, values = np.array(points).T
        marks.append(frame.line(rates, np.minimum(values, top), f"s{i % len(SERIES)}", c.label))
    ticks = [(value, f"{value:.3g} s") for value, _ in linear_ticks(top)]
    return frame.draw(f"{name} against rate", linear_ticks(right), ticks, marks)
