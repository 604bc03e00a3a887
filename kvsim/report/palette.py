"""Colours and names that terminal, HTML report and app share. Okabe–Ito: told apart with any colour vision."""

from __future__ import annotations

from dataclasses import dataclass


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
