"""Results as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.report.palette import MEMORY, trust
from kvsim.result import Result
from kvsim.units import format_bytes, format_count, format_duration

Summary = Mapping[str, Any]
_LABEL = 11


def overview(result: Result) -> RenderableType:
    """Everything `kvsim simulate` prints of one run."""
    summary = result.summary
    return Group(
        heading(result),
        Text(),
        *_facts(summary),
        Text(),
        _latency_table(summary),
        Text(),
        *_memory(summary, several=_gpus(result.run) > 1),
        *notes(result.run),
    )


def policy_name(run: Mapping[str, Any]) -> str | None:
    """The policy that was asked for, or the axes that the engine chose."""
    axes = run.get("policy") or {}
    chosen = [axes.get("layout"), f"prefix {axes['prefix']}" if axes.get("prefix", "off") != "off" else None]
    return (run.get("scenario") or {}).get("policy") or " with ".join(filter(None, chosen)) or None


def trace_name(run: Mapping[str, Any]) -> str:
    """The trace without its folder."""
    return str((run.get("scenario") or {}).get("trace") or "").rsplit("/", 1)[-1]


def heading(result: Result, policy: str | None = None) -> RenderableType:
    """What was run on what, and how far the numbers can be trusted."""
    where: Summary = result.run.get("provenance") or {}
    parts = [
        f"[bold]{where.get('model') or 'a model'}[/] on [bold]{_gpus(result.run)} × {where.get('device')}[/]",
        policy or policy_name(result.run),
        where.get("engine"),
        trace_name(result.run),
    ]
    lines = Text.from_markup(" · ".join(str(part) for part in parts if part))
    return Group(lines, _trust(where))


def _gpus(run: Mapping[str, Any]) -> int:
    """GPUs in all."""
    scenario = run.get("scenario") or {}
    return int(scenario.get("tp", 1) * scenario.get("pp", 1) * scenario.get("replicas", 1))


def notes(run: Mapping[str, Any]) -> list[RenderableType]:
    """What the reader and the simulator want to have said."""
    dropped = run.get("dropped") or {}
    lines = [f"{count:,} rows of the trace dropped: {reason}" for reason, count in dropped.items()]
    texts = [Text(f"Note: {line}", style="yellow") for line in [*lines, *run.get("notes", ())]]
    return [Text(), *texts] if texts else []


def memory_bar(shares: Mapping[str, float | None], width: int) -> Text:
    """One line of coloured blocks, as many of each category as its share of the pool."""
    bar, edge, begin = Text(), 0.0, 0
    for name, category in MEMORY.items():
        edge += shares.get(name) or 0.0
        end = round(edge * width)
        bar.append(category.glyph * (end - begin), style=category.colour)
        begin = end
    return bar


def percent(share: float | None) -> str:
    """`12.3%`, `<0.1%`, a dash for nothing."""
    if share is None:
        return "–"
    return "0%" if share == 0 else "<0.1%" if share < 0.0005 else f"{share:.1%}"


def brief(seconds: float) -> str:
    """A duration of at most 8 characters: `45.2 ms`, `11.5 min`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return format_duration(seconds)


def span(low_high: tuple[float, float] | None, write: Callable[[float], str]) -> str:
    """An interval as `38–52 ms`."""
    if low_high is None or None in low_high:
        return ""
    low, high = (write(value) for value in low_high)
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if unit and high.endswith(f" {unit}") else f"{low}–{high}"


def _trust(where: Summary) -> Text:
    tier = where.get("tier")
    style = {"measured": "green", "imported": "green"}.get(tier or "", "bold yellow")
    return Text(trust(where, f"Profile of unknown origin ({tier})."), style=style)


def line(label: str, text: str) -> Table:
    """A label and a text that wraps beside it."""
    row = Table.grid(padding=(0, 0))
    row.add_column(width=_LABEL, style="bold")
    row.add_column()
    row.add_row(label, Text.from_markup(text))
    return row


def _facts(summary: Summary) -> list[RenderableType]:
    requests, rates = summary["requests"], summary["throughput"]
    done = f"{requests['completed']:,} of {requests['total']:,} completed"
    if summary["duration_s"]:
        done += f" in {format_duration(summary['duration_s'])}"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in requests["refused_reasons"].items())
    if requests["refused"]:
        done += f" · [yellow]{requests['refused']:,} refused[/] ({reasons})"
    if requests.get("failed"):
        done += f" · [red]{requests['failed']:,} failed[/]"
    lines = [line("Requests", done)]
    if rates["requests_per_s"] is not None:
        interval = span((summary.get("interval") or {}).get("output_tokens_per_s"), format_count)
        lines.append(
            line(
                "Throughput",
                f"{format_count(rates['requests_per_s'])} requests/s · "
                f"[bold]{format_count(rates['output_tokens_per_s'])}[/] output tokens/s"
                + (f" [dim]({interval})[/]" if interval else "")
                + f" · {format_count(rates['total_tokens_per_s'])} in all",
            )
        )
    if goodput := summary.get("goodput"):
        rate, share = goodput["requests_per_s"], percent(goodput["share"])
        lines.append(line("Goodput", f"{format_count(rate or 0)} requests/s meet the objectives ({share})"))
    return list(lines)


def _latency_table(summary: Summary) -> Table:
    columns = ("mean", "p50", "p90", "p95", "p99", "max")
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("Latency", width=_LABEL - 2, style="bold")
    for name in columns:
        table.add_column(name, justify="right", min_width=10, no_wrap=True)
    intervals = summary.get("interval") or {}
    for name, values in summary["latency_s"].items():
        table.add_row(latency_name(name), *("–" if values[c] is None else brief(values[c]) for c in columns))
        ranges = [span(intervals.get(f"{name}_{column}"), brief) for column in columns]
        if any(ranges):
            table.add_row("", *ranges, style="dim not bold")
    return table


def latency_name(name: str) -> str:
    """`ttft` as a person writes it."""
    return name if name == "queue" else name.upper()


def _memory(summary: Summary, several: bool = False) -> list[RenderableType]:
    memory, cache, work = summary["memory"], summary["cache"], summary["computed_tokens"]
    size = memory["kv_capacity_bytes"]
    blocks = f" · {memory['kv_blocks']:,} blocks" if memory["kv_blocks"] else ""
    lines: list[RenderableType] = []
    if size:
        gpu, replica = (" a GPU", " a replica") if several else ("", "")
        holds = f" · {memory['kv_tokens']:,} tokens{replica}"
        lines.append(line("KV cache", f"[bold]{format_bytes(size)}[/]{gpu}{blocks}{holds}"))
    elif size == 0:
        lines.append(line("KV cache", "none: every step computes the whole sequence again"))
    shares = memory["mean"]
    if any(shares.values()):
        lines.append(Padding(memory_bar(shares, 67), (0, 0, 0, _LABEL)))
        keys = {name: f"[{MEMORY[name].colour}]{MEMORY[name].glyph}[/] {name}" for name in shares}
        lines.append(line("", "   ".join(f"{keys[name]} {percent(share)}" for name, share in shares.items() if share)))
        saved = memory["shared_saved_bytes"]
        shared = f" · sharing saves {format_bytes(saved)}" if saved else ""
        lines.append(line("", f"[dim]mean over time; at most {percent(memory['peak_used_share'])} used{shared}[/]"))
    if not summary["steps"] and summary["requests"]["completed"]:  # of a server that was measured nothing else is known
        return [*lines, line("Cache", f"prefix hits {percent(cache['prefix_hit_share'])}")]
    counts = [
        f"prefix hits {percent(cache['prefix_hit_share'])}",
        _count(cache["preemptions"], "preemptions"),
        _count(cache["evicted_blocks"], "evicted blocks"),
        f"{format_bytes(cache['swapped_bytes'])} swapped" if cache["swapped_bytes"] else "",
    ]
    lines.append(line("Cache", " · ".join(filter(None, counts))))
    tokens = [_count(work["prefill"], "prefill"), _count(work["decode"], "decode tokens")]
    again = [_count(work["recomputed"], "recomputed")] if work["recomputed"] else []
    lines.append(line("Computed", " · ".join(filter(None, [*tokens, *again, f"{summary['steps']:,} steps"]))))
    return lines


def _count(value: int | None, what: str) -> str:
    return "" if value is None else f"{value:,} {what}"
