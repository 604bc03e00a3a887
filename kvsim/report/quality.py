"""What policies cost in quality, as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvsim.accuracy import FORMATS, accuracy_table, in_basis, lossy, measured, streams
from kvsim.result import Result

Row = Mapping[str, Any]
_STREAMS = (
    "Streams are read through the window from their first token on; perplexity is of their last quarter, where the "
    "full cache holds three to four times as much; whole: of all their tokens, as StreamingLLM counts.\n"
)


def table(document: Mapping[str, Any]) -> RenderableType:
    """What `kvsim accuracy` measured: a row a policy."""
    lines = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    lines.add_column("Policy", style="bold", vertical="bottom", no_wrap=True)
    for header in ("cache", "perplexity", "95 %", "same\ntoken", "KL\nnats", "attn.\nerror", "facts\nfound"):
        lines.add_column(header, justify="right", vertical="bottom", no_wrap=True)
    for row in document["results"]:
        first = row is document["results"][0]
        needle = row["needle"]
        lines.add_row(
            label(row),
            f"{row['share']:.0%}",
            f"{row['perplexity']:.2f}" if first else change(row["perplexity_change"]),
            "" if first else interval(row),
            f"{row['top1_agreement']:.1%}",
            f"{row['kl']:.4f}",
            f"{row['attention_error']['mean']:.1%}",
            f"{needle['found']}/{needle['asked']}",
        )
    context = document["prompt_tokens"] + document["decoded_tokens"]
    stored = {row["precision"] for row in document["results"]}
    formats = [f"{name}: {said}" for name, said in FORMATS.items() if any(one.endswith(name) for one in stored)]
    said = (
        f"{document['model']} ({document['weights']})\n"
        f"{document['chunks']} texts of {document['prompt_tokens']:,} + {document['decoded_tokens']:,} tokens: "
        f"{document['text']}\n"
        f"{'; '.join(formats)}.\n"
        f"{_STREAMS if document['streams'] else ''}"
        f"Cache: mean bytes held ÷ those of the full bf16 cache, up to {context:,} tokens. "
        "Measured on this model and text: no promise for others."
    )
    return Group(lines, *_streams(document), Text(said, style="dim"))


def _streams(document: Mapping[str, Any]) -> list[RenderableType]:
    """Windows on streams: how much the length of the context matters."""
    rows = document["streams"]
    if not rows:
        return []
    lines = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    lines.add_column("Streams,\na quarter kept", style="bold", vertical="bottom", no_wrap=True)
    for header in ("texts", "no\nsinks", "4\nsinks", "95 %", "4 sinks,\nwhole", "95 %"):
        lines.add_column(header, justify="right", vertical="bottom", no_wrap=True)
    named = None
    for plain, sinks in zip(rows[::2], rows[1::2], strict=True):
        if plain["text"] != named:
            named = plain["text"]
            lines.add_row(named)
        lines.add_row(
            f"  {plain['budget']:,} of {plain['context']:,}", str(plain["texts"]), change(plain["perplexity_change"]),
            change(sinks["perplexity_change"]), interval(sinks), change(sinks["whole_change"]),
            interval(sinks, "whole_change_interval"),
        )  # fmt: skip
    return [Text(), lines, Text()]


def published(document: Mapping[str, Any]) -> RenderableType:
    """What others report for other models."""
    lines = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for header in ("Published", "model", "cache", "test"):
        lines.add_column(header, no_wrap=header != "test")
    for header in ("16 bit", "result"):
        lines.add_column(header, justify="right", no_wrap=True)
    for row in document["published"]:
        base = "" if row["baseline"] is None else f"{row['baseline']:.2f}"
        lines.add_row(row["system"], row["model"], row["kv_dtype"], row["test"], base, row["result"])
    return lines


def shipped() -> RenderableType:
    """The table that kvsim ships, and published results beside it."""
    document = accuracy_table()
    return Group(table(document), Text(), published(document))


def beside(runs: Mapping[str, Result]) -> RenderableType | None:
    """For `kvsim compare`: a line for each run whose policy changes answers; None where no one does."""
    policies = {name: result.run["policy"] for name, result in runs.items() if "policy" in result.run}
    changing = {name: policy for name, policy in policies.items() if lossy(policy)}
    if not changing:
        return None
    document = accuracy_table()
    lines = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    lines.add_column("Quality", style="bold", min_width=min(16, max(map(len, runs))), vertical="top")
    lines.add_column("perplexity, as measured on another model", vertical="top")
    for name, policy in changing.items():
        lines.add_row(name, _said(policy, document))
    context = document["prompt_tokens"] + document["decoded_tokens"]
    note = (f"Measured on {document['model']} with texts of {context:,} tokens, [95 % interval]: no promise for your "
            "model. More: kvsim list policies --accuracy, kvsim accuracy.")  # fmt: skip
    return Group(lines, Text(note, style="dim"))


def _said(policy: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    rows = measured(policy)
    if not rows:
        return "not measured"
    context = document["prompt_tokens"] + document["decoded_tokens"]
    parts = []
    for row in rows:
        at = f" keeping {row['budget']:,} of {context:,} tokens" if row["budget"] else ""
        parts.append(f"{change(row['perplexity_change'])} {interval(row)}{at}")
    if basis := in_basis(policy):
        parts[0] += f" {FORMATS[policy['precision']]}"
        parts.append(f"{change(basis['perplexity_change'])} {interval(basis)} {FORMATS['-basis']}")
    for row in streams(policy):
        at = f"{row['budget']:,} of {row['context']:,} tokens of a stream ({row['text']})"
        parts.append(f"{change(row['perplexity_change'])} {interval(row)} keeping {at}")
    return "\n".join(parts)


def label(row: Row) -> str:
    """`"int8"`, `"4 sinks + 508"`, `"h2o 512"`, `"int4, h2o 512"`."""
    kind, _, values = row["retention"].partition(":")
    precision = row["precision"]
    if kind == "full":
        return str(precision)
    numbers = dict(item.split("=") for item in values.split(","))
    if kind == "window":
        sinks = int(numbers["sinks"])
        kept = f"{sinks} sinks + {numbers['recent']}" if sinks else f"window {numbers['recent']}"
    else:
        kept = f"{'h2o' if kind == 'heavy_hitter' else kind} {numbers['budget']}"
    return kept if precision == "bf16" else f"{precision}, {kept}"


def change(share: float) -> str:
    """`"+0.03%"`; large ones with one decimal."""
    return f"{share:+.2%}" if abs(share) < 0.1 else f"{share:+.1%}"


def interval(row: Row, of: str = "perplexity_change_interval") -> str:
    """`"[+0.01, +0.05]"`, in percent; "–" where one text was all."""
    ends = row[of]
    if ends is None:
        return "–"
    digits = 2 if max(map(abs, ends)) < 0.1 else 1
    return "[" + ", ".join(f"{end * 100:+.{digits}f}" for end in ends) + "]"
