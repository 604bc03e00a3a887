"""Colours and names that terminal, HTML report and app share. Okabe–Ito: told apart with any colour vision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Category:
    """How one memory category looks: on paper, and as a character where there is no colour."""

    colour: str
    glyph: str
    help: str


MEMORY = {
    "used": Category("#0072B2", "█", "holds a token"),
    "reserved": Category("#56B4E9", "▓", "allocated, will be filled"),
    "internal": Category("#E69F00", "▒", "allocated, never filled"),
    "cached": Category("#009E73", "▚", "idle prefix blocks"),
    "external": Category("#D55E00", "╳", "free, outside the largest hole"),
    "free": Category("#8A8F98", "·", "not allocated"),
}

SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#8A6D00", "#5B5F66")
"""Colours of policies, in order"""

TIERS = {
    "measured": "Measured: this device profile comes from kernels timed on such a device.",
    "imported": "Imported: this device profile comes from published kernel measurements.",
    "datasheet": "Datasheet only: nothing was measured here. Expect errors of tens of percent.",
}


def trust(provenance: Mapping[str, Any], unknown: str) -> str:
    """One sentence on where the numbers of a Result come from; `unknown` where that is not known."""
    if run := provenance.get("run"):
        return f"Measured: a run of {run}, no prediction."
    return TIERS.get(provenance.get("tier") or "", unknown)
