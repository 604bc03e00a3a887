"""What is timed: a kernel and a place on its curve, by the column names of `rows`.

Families beside those of `rows`: `ceiling` (read, copy, gemm, launch: what the device can do at best) and `step`
(decode steps of a few whole layers). Memory rows carry the shape that their bytes come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Values = dict[str, Any]


class Lost(RuntimeError):
    """The device answers no more in this process: whatever comes after would fail too."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time. Cases of equal family and values are the same case, whatever their level."""

    family: str
    values: Values = field(compare=False)
    level: int = field(default=0, compare=False)
    """0: needed for a usable profile; higher: refinement"""
    name: str = field(init=False)
    """unique, stable: the key of its raw rows"""

    def __post_init__(self) -> None:
        words = " ".join(f"{column}={value}" for column, value in self.values.items())
        object.__setattr__(self, "name", f"{self.family} {words}")
