"""What cache policies cost in quality, as measured on one small model by `kvsim accuracy` (docs/accuracy.md).

It holds for that model and text and is no promise for others: a larger model has more to lose or more to spare.
Published results for other models stand beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from kvsim.cache.retention import parse_retention
from kvsim.errors import InputError

Row = dict[str, Any]
_UNQUANTIZED = ("auto", "bf16", "fp16", "fp32")

FORMATS = {
    "fp8": "e4m3 with one scale, as servers store it",
    "fp8-head": "a scale for each token and head",
    "int8": "the same",
    "int4": "scale and zero for 32 channels",
    "-basis": "keys in a basis fitted to the model, as no server stores them",
}
"""what a precision of the table stores; the last entry is for names that end so"""


@cache
def accuracy_table() -> dict[str, Any]:
    """The shipped measurement: `model`, `weights`, `text`, `prompt_tokens`, `decoded_tokens`, … say on what,
    `results` is a row a policy (keys: kvsim_calibration.accuracy.summary), the full bf16 cache first, `streams` a row a
    text, context and window, `published` what others report for other models.
    """
    data = files("kvsim").joinpath("data")
    measured = json.loads(data.joinpath("accuracy.json").read_text(encoding="utf-8"))
    published = json.loads(data.joinpath("accuracy-published.json").read_text(encoding="utf-8"))
    return {**measured, "published": published["results"]}


def lossy(policy: Mapping[str, Any]) -> bool:
    """Whether a policy (`CacheSpec.facts()`, or `policy` of a run) changes what the model answers."""
    return _kind(policy) != ("full", "plain")


def measured(policy: Mapping[str, Any]) -> list[Row]:
    """The table's rows with the retention and precision of a policy, at whatever budgets; [] where there is none."""
    return [row for row in accuracy_table()["results"] if _kind(row) == _kind(policy)]


def in_basis(policy: Mapping[str, Any]) -> Row | None:
    """The row of the policy's precision with keys in a fitted basis (FORMATS); None where there is none, or the policy
    drops tokens."""
    if _retention(policy["retention"]) != "full":
        return None
    family = f"{policy['precision']}-"
    return next((row for row in accuracy_table()["results"] if row["retention"] == "full"
                 and row["precision"].startswith(family) and row["precision"].endswith("-basis")), None)  # fmt: skip


def streams(policy: Mapping[str, Any]) -> list[Row]:
    """What a policy's windows did to the longest streams that were measured, a row a text; [] for others."""
    rows = [row for row in accuracy_table()["streams"] if _kind(row) == _kind(policy)]
    return [row for row in rows if row["context"] == max(row["context"] for row in rows)]


def _kind(policy: Mapping[str, Any]) -> tuple[str, str]:
    """Retention (with sinks is one of its own) and precision."""
    precision = policy["precision"]
    return _retention(policy["retention"]), "plain" if precision in _UNQUANTIZED else precision


def _retention(text: str) -> str:
    """`"window:sinks=4,recent=508"` or `"Window(sinks=4, recent=508)"` → `"window with sinks"`."""
    if text.lower().startswith("full"):
        return "full"
    name, _, values = text.replace("(", ":").replace(")", "").replace(" ", "").partition(":")
    spelled = {"HeavyHitter": "heavy_hitter"}.get(name, name.lower())
    try:
        retention = parse_retention(f"{spelled}:{values}")
    except InputError:
        return text  # a policy of the user's: nothing was measured for it
    return f"{spelled} with sinks" if getattr(retention, "sinks", 0) else spelled
