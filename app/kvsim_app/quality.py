"""What policies cost in answers: the measurement that comes with kvsim, put beside the runs of a page.

It was made on one small model (docs/accuracy.md) and is no promise for another: every sentence and chart says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.accuracy import accuracy_table, lossy, measured
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


def source() -> str:
    """On what it was measured, as a sentence."""
    table = accuracy_table()
    tokens = table["prompt_tokens"] + table["decoded_tokens"]
    return (
        f"Measured on {table['model']} with {table['chunks']} texts of {tokens:,} tokens; bars are 95 % intervals. "
        "No promise for another model or a longer context."
    )


def _quality(run: str, row: Mapping[str, Any]) -> Quality:
    low, high = row["perplexity_change_interval"] or [row["perplexity_change"]] * 2
    needle = row["needle"]
    return Quality(
        run, label(row), row["perplexity_change"], low, high, row["top1_agreement"],
        f"{needle['found']} of {needle['asked']}", row["share"], (change(row["perplexity_change"]), interval(row)),
    )  # fmt: skip


def _kind(retention: str) -> str:
    name, _, values = retention.partition(":")
    if name == "window":
        return "streaming" if "sinks=0" not in values else "window"
    return {"heavy_hitter": "h2o"}.get(name, name)


def _budget(policy: Policy) -> int | None:
    """Tokens that a policy keeps; None: all."""
    said = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", policy["retention"])}
    if "budget" in said:
        return said["budget"]
    return said.get("sinks", 0) + said["recent"] if "recent" in said else None
