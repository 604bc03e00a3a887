"""What policies cost in answers: the measurement that comes with kvsim, put beside the runs of a page.

It was made on one small model (docs/accuracy.md) and is no promise for another: every sentence and chart says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.accuracy import FORMATS, accuracy_table, in_basis, lossy, measured, streams
from kvsim.cache.policies import POLICIES
from kvsim.report.quality import change, interval, label
from kvsim.result import Result

Policy = Mapping[str, Any]


@dataclass(frozen=True)
class Quality:
    """One measured policy. `change` of perplexity over the full 16-bit cache and its 95 % interval, as shares."""

    run: str
    label: str
    """precision and tokens kept, as measured"""
    change: float
    low: float
    high: float
    same_token: float
    """share of next tokens that stay the same"""
    facts: str
    """facts found again of those that were asked for"""
    cache: float
    """share of the full cache's bytes"""
    said: tuple[str, str]
    """the change and its interval in percent, as the command line writes them"""

    @property
    def text(self) -> str:
        return " ".join(self.said)


def of_policy(run: str, policy: Policy) -> list[Quality]:
    """What was measured for a policy (`policy` of a run): at its own budget where it was, else at all others."""
    rows = measured(policy)
    own = [row for row in rows if row["budget"] == _budget(policy)]
    return [_quality(run, row) for row in own or rows]


def of_runs(runs: Mapping[str, Result]) -> dict[str, list[Quality]]:
    """What was measured for each run whose policy changes answers; an empty list: nothing was."""
    policies = {name: result.run.get("policy") for name, result in runs.items()}
    return {name: of_policy(name, policy) for name, policy in policies.items() if policy and lossy(policy)}


def of_kind(*kinds: str) -> list[Quality]:
    """Rows of the table by `precision` of a full cache, or by retention of a 16-bit one, under the kind's name."""
    rows = accuracy_table()["results"][1:]
    return [
        _quality(kind, row)
        for kind in kinds
        for row in rows
        if (row["precision"] == kind and row["retention"] == "full")
        or (row["precision"] == "bf16" and _kind(row["retention"]) == kind)
    ]


def kinds(policies: Iterable[Policy]) -> list[str]:
    """Precisions and retentions of policies, as `source` takes them."""
    return [kind for policy in policies for kind in (policy["precision"], _kind(policy["retention"]))]


def source(*kinds: str) -> str:
    """On what it was measured, as sentences. Of these kinds, precisions that were also measured with keys in a fitted
    basis say which is which, and windows what they cost a longer stream."""
    table = accuracy_table()
    tokens = table["prompt_tokens"] + table["decoded_tokens"]
    said = [
        f"Measured on {table['model']} with {table['chunks']} texts of {tokens:,} tokens; bars are 95 % intervals. "
        "No promise for another model or a longer context."
    ]
    for kind in dict.fromkeys(kinds):
        if row := in_basis({"precision": kind, "retention": "full"}):
            said.append(f"{kind}: {FORMATS[kind]}. With {FORMATS['-basis']}, it was {_said(row)}.")
        if kind == "streaming" and (rows := streams(POLICIES.get(kind).facts())):
            each = ", ".join(f"{_said(row)} on {row['text']}" for row in rows)
            said.append(f"Streams of {rows[0]['context']:,} tokens through a window of {rows[0]['budget']:,}: {each}.")
    return " ".join(said)


def _said(row: Mapping[str, Any]) -> str:
    return f"{change(row['perplexity_change'])} {interval(row)}"


def _quality(run: str, row: Mapping[str, Any]) -> Quality:
    low, high = row["perplexity_change_interval"] or [row["perplexity_change"]] * 2
    needle = row["needle"]
    return Quality(
        run, label(row), row["perplexity_change"], low, high, row["top1_agreement"],
        f"{needle['found']} of {needle['asked']}", row["share"], (change(row["perplexity_change"]), interval(row)),
    )  # fmt: skip


def _kind(retention: str) -> str:
    name = re.split(r"\W", retention)[0].lower()  # "window:sinks=4,…" and "Window(sinks=4, …)"
    if name == "window":
        return "streaming" if "sinks=0" not in retention else "window"
    return {"heavy_hitter": "h2o", "heavyhitter": "h2o"}.get(name, name)


def _budget(policy: Policy) -> int | None:
    """Tokens that a policy keeps; None: all."""
    said = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", policy["retention"])}
    if "budget" in said:
        return said["budget"]
    return said.get("sinks", 0) + said["recent"] if "recent" in said else None
