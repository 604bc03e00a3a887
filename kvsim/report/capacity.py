"""`kvsim plan`'s answer for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.plan import Answer, Candidate
from kvsim.report.palette import TIERS
from kvsim.report.terminal import line, notes
from kvsim.scenario import Scenario
from kvsim.units import format_count, format_duration

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
    latency = [f"{o.name} ≤ {format_duration(o.limit_s)}" for o in goals.latency]
    each = ", ".join(f"{name} ≤ {format_duration(limit)}" for name, limit in goals.each.items())
    good = [f"{each} for {100 * goals.goodput:.4g}% of requests"] if each else []
    return " · ".join([*latency, *good, f"refused ≤ {100 * goals.refused:.4g}%"])


def judged(answer: Answer) -> str:
    """By how many requests."""
    all_of = answer.requests == answer.trace_requests
    return f"all {answer.requests:,}" if all_of else f"{answer.requests:,} of {answer.trace_requests:,}"


def verdict(answer: Answer) -> str:
    """The answer in a sentence."""
    best = answer.answer
    if answer.too_short:
        return f"No answer: the requests are too few to load {answer.too_short.label}."
    if best is None:
        return "Not reachable by any of these candidates."
    each = f"of {best.tp} × {best.device} under {best.policy}"
    carry = "carries" if best.replicas == 1 else "carry"
    return f"{_replicas(best)} {each} {carry} {format_count(answer.target_rate or 0)} requests/s"


def _replicas(best: Candidate) -> str:
    return f"{best.replicas:,} replica{'s' * (best.replicas != 1)}" if best.replicas else "Replicas"


def span(candidate: Candidate, key: str, write: Callable[[float], str]) -> str:
    """An interval as text; empty where there is none."""
    ends = candidate.interval.get(key)
    return f"{write(ends[0])}–{write(ends[1])}" if ends and ends[0] != ends[1] else write(ends[0]) if ends else ""


def _verdict(answer: Answer, scenario: Scenario) -> list[RenderableType]:
    best = answer.answer
    lines: list[RenderableType] = [
        Text.from_markup(f"[bold]{scenario.model}[/] · {scenario.trace.rsplit('/', 1)[-1]} · {demands(answer)}"),
        Text(f"Steady traffic, judged by {judged(answer)} requests", style="dim"),
        Text(),
        Text(verdict(answer), style="bold green" if best else "bold red"),
    ]
    if best is None:
        return lines
    holds = f"holds {format_count(best.rate_per_replica or 0)} requests/s"
    if interval := span(best, "rate_per_replica", format_count):
        holds += f" (90 %: {interval})"
    if counts := span(best, "replicas", format_count):
        steady = "–" not in counts
        holds += f", so {counts} replica{'s' * (counts != '1')}{' at either end' if steady else ''}"
    lines.append(line("A replica", holds))
    if best.cost_per_million_output_tokens is not None:
        cost = span(best, "cost_per_million_output_tokens", lambda value: f"{value:.3g}")
        paid = f"{best.cost_per_million_output_tokens:.3g} a million output tokens"
        lines.append(line("Cost", paid + (f" ({cost})" if "–" in cost else "")))
    if best.kwh_per_million_output_tokens is not None:
        most = f"at most {best.kwh_per_million_output_tokens:.3g} kWh a million output tokens"
        lines.append(line("Energy", f"{most}, at the boards' power limit"))
    lines.append(line("Limit", f"{best.limit}. {best.reason}."))
    tier = best.tier or ""
    lines.append(Text(TIERS.get(tier, ""), style="green" if tier in ("measured", "imported") else "bold yellow"))
    return lines


def _candidates(answer: Answer) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("a replica", style="bold", overflow="fold")
    table.add_column("policy", overflow="fold")
    priced = any(c.cost_per_million_output_tokens is not None for c in answer.candidates)
    for title in ("req/s", "replicas", "GPUs", *(["cost/M"] if priced else [])):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("limit")
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
    """Why candidates are out, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for c in answer.candidates:
        if not c.reachable:
            by_reason.setdefault(c.reason, []).append(c.label)
    texts = [Text(f"{', '.join(labels)}: {reason}", style="dim") for reason, labels in by_reason.items()]
    return [Text(), *texts] if texts else []


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
