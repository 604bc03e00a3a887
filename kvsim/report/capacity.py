"""`kvsim plan`'s answer for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.plan import Answer, Candidate
from kvsim.report.palette import TIERS
from kvsim.report.terminal import notes
from kvsim.scenario import Scenario
from kvsim.units import format_count

FRONT = 8
"""rows of the Pareto front that are shown"""


def capacity(answer: Answer, scenario: Scenario) -> RenderableType:
    """Everything `kvsim plan` prints."""
    return Group(
        *_verdict(answer, scenario), Text(), _candidates(answer), *_reasons(answer), *_front(answer),
        *notes({"notes": answer.notes}),
    )


def demands(answer: Answer) -> str:
    """The objectives as they were asked for."""
    goals = answer.objectives
    latency = [f"{o.name} ≤ {o.limit_s:g} s" for o in goals.latency]
    each = ", ".join(f"{name} ≤ {limit:g} s" for name, limit in goals.each.items())
    good = [f"{each} in {goals.goodput:.4g} of requests"] if each else []
    return " · ".join([*latency, *good, f"refused ≤ {goals.refused:.1%}"])


def verdict(answer: Answer) -> str:
    """The answer in a sentence."""
    best = answer.answer
    if best is None:
        return "Not reachable by any of these candidates."
    count = f"{best.replicas} replica{'s' * (best.replicas != 1)}" if best.replicas else "replicas"
    gpus = f"{count} of {best.tp} × {best.device} under {best.policy}"
    carry = "GPUs carry" if best.gpus != 1 else "GPU carries"
    return f"{gpus}: {best.gpus} {carry} {format_count(answer.target_rate or 0)} requests/s"


def span(candidate: Candidate, key: str, write: Callable[[float], str]) -> str:
    """An interval as text; empty where there is none."""
    ends = candidate.interval.get(key)
    return f"{write(ends[0])}–{write(ends[1])}" if ends and ends[0] != ends[1] else write(ends[0]) if ends else ""


def _verdict(answer: Answer, scenario: Scenario) -> list[RenderableType]:
    best = answer.answer
    lines: list[RenderableType] = [
        Text.from_markup(f"[bold]{scenario.model}[/] · {scenario.trace.rsplit('/', 1)[-1]} · {demands(answer)}"),
        Text(f"Steady traffic, judged by {answer.requests:,} of {answer.trace_requests:,} requests", style="dim"),
        Text(),
        Text(verdict(answer), style="bold green" if best else "bold red"),
    ]
    if best is None:
        return lines
    facts = [f"each replica holds {format_count(best.rate_per_replica or 0)} requests/s"]
    if interval := span(best, "rate_per_replica", format_count):
        facts[0] += f" ({interval}: so {span(best, 'replicas', format_count)} replicas)"
    if best.cost_per_million_output_tokens is not None:
        cost = span(best, "cost_per_million_output_tokens", lambda value: f"{value:.3g}")
        paid = f"{best.cost_per_million_output_tokens:.3g} a million output tokens"
        facts.append(paid + (f" ({cost})" if cost else ""))
    if best.kwh_per_million_output_tokens is not None:
        facts.append(f"at most {best.kwh_per_million_output_tokens:.3g} kWh a million, at the boards' power limit")
    lines.append(Text("; ".join(facts)))
    lines.append(Text(f"Limit: {best.limit}. {best.reason[:1].upper()}{best.reason[1:]}."))
    tier = best.tier or ""
    lines.append(Text(TIERS.get(tier, ""), style="green" if tier in ("measured", "imported") else "bold yellow"))
    return lines


def _candidates(answer: Answer) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("a replica", style="bold", overflow="fold", min_width=14)
    table.add_column("policy", overflow="fold", min_width=13)
    priced = any(c.cost_per_million_output_tokens is not None for c in answer.candidates)
    for title in ("requests/s", "replicas", "GPUs", *(["a M tokens"] if priced else [])):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for number, c in enumerate(answer.candidates):
        mark = "bold green" if number == answer.best else "dim" if not c.reachable else ""
        cost = c.cost_per_million_output_tokens
        paid = ["–" if cost is None else f"{cost:.3g}"] if priced else []
        table.add_row(
            f"{c.tp} × {c.device}", c.policy, _number(c.rate_per_replica), _number(c.replicas), _number(c.gpus),
            *paid, c.limit or "not reachable", style=mark,
        )
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else format_count(value)


def _reasons(answer: Answer) -> list[RenderableType]:
    return [Text(f"{c.label}: {c.reason}", style="dim") for c in answer.candidates if not c.reachable]


def _front(answer: Answer) -> list[RenderableType]:
    front = answer.pareto()
    if not front:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Fastest for a user … most from a GPU", style="bold")
    for title in ("requests/s", "tokens/s\na user", "tokens/s\na GPU"):
        table.add_column(title, justify="right", vertical="bottom")
    step = max(1, -(-len(front) // FRONT))
    for point in front[::step]:
        table.add_row(answer.candidates[point.candidate].label, format_count(point.rate),
                      format_count(point.user_tokens_per_s), format_count(point.gpu_tokens_per_s))
    return [Text(), table]
