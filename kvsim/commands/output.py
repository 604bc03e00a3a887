"""Printing: tables for a person, one JSON object for a program."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def show(table: RenderableType) -> None:
    """Print for a person: as wide as the terminal, 80 columns into a file or pipe."""
    from rich.console import Console  # here, because rich costs a tenth of a second and --json needs none of it

    Console(highlight=False, width=None if sys.stdout.isatty() else 80).print(table)


def names_give_way(table: Table) -> None:
    """Where the terminal is too narrow, numbers (columns aligned right) stay whole; names fold, and lose nothing."""
    for column in table.columns:
        column.no_wrap = column.justify == "right"
        column.overflow = "fold"


def show_json(document: Any) -> None:
    """Print one JSON document and nothing else."""
    print(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))
