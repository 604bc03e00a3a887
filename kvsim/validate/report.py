"""The answer of every rung: rows of predicted against true, and their errors by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Row:
    """One prediction, in the unit of the truth."""

    id: str
    group: str
    metric: str
    predicted: float
    true: float
    interval: tuple[float, float] | None = None
    """90 % interval of the prediction"""
    note: str = ""
    """what was assumed"""
    rounding: float = 0.0
    """half a unit of the truth's last digit: a smaller difference is none"""
    split: str = ""
    """how the model was spread over GPUs: `TP 4`, `TP 2 DP 4`, `one GPU`; empty where that is no question"""

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted / self.true - 1

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the truth; None without an interval."""
        if self.interval is None:
            return None
        return self.interval[0] - self.rounding <= self.true <= self.interval[1] + self.rounding


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one statistic of one group (`""`: of all rows) and metric (`""`: any): `value` ≤ bound, coverage ≥."""

    group: str
    statistic: str
    bound: float
    metric: str = ""

    def __str__(self) -> str:
        word = "≥" if self.statistic == "coverage90" else "≤"
        metric = f" {self.metric}" if self.metric else ""
        return f"{self.group or 'all'}{metric}: {self.statistic} {word} {self.bound:.3g}"

    def holds_for(self, row: Row) -> bool:
        """Whether it is about this row."""
        return self.group in ("", row.group) and self.metric in ("", row.metric)


@dataclass(slots=True)
class Report:
    """A rung's rows, what was skipped and why, and whether its goals are met."""

    rung: str
    rows: list[Row]
    skipped: dict[str, int] = field(default_factory=dict)
    goals: Sequence[Goal] = ()
    unpredicted: dict[str, int] = field(default_factory=dict)
    """cases that could have been checked and were not, by reason: a failure, and part of `skipped`"""

    def reached(self, goal: Goal) -> float | int | None:
        """The goal's statistic of the rows it is about; None where no row says anything about it."""
        return statistics(row for row in self.rows if goal.holds_for(row)).get(goal.statistic)

    def missed(self) -> list[str]:
        """The goals that are not met, in words with what was reached."""
        found = [f"{count} checkable cases not predicted: {reason}" for reason, count in self.unpredicted.items()]
        for goal in self.goals:
            value = self.reached(goal)
            if value is None:
                continue
            met = value >= goal.bound if goal.statistic == "coverage90" else abs(value) <= goal.bound
            if not met:
                found.append(f"{goal}, reached {value:.3g}")
        return found

    def groups(self) -> dict[str, dict[str, float | int | None]]:
        """Statistics by group, in order of first appearance."""
        names = dict.fromkeys(row.group for row in self.rows)
        return {name: statistics([row for row in self.rows if row.group == name]) for name in names}

    def splits(self) -> dict[str, dict[str, float | int | None]]:
        """Statistics by how the model was spread over GPUs, in order of their number."""
        names = sorted({row.split for row in self.rows if row.split}, key=_degrees)
        return {name: statistics([row for row in self.rows if row.split == name]) for name in names}

    def to_json(self) -> dict[str, Any]:
        """The object of `kvsim validate RUNG --json`."""
        return {
            "rung": self.rung, **statistics(self.rows), "groups": self.groups(), "splits": self.splits(),
            "rows": [
                {"id": r.id, "metric": r.metric, "predicted": r.predicted, "true": r.true, "error": r.error,
                 "interval": list(r.interval) if r.interval else None, "group": r.group, "note": r.note,
                 "rounding": r.rounding, "split": r.split}
                for r in self.rows
            ],
            "skipped": self.skipped, "missed": self.missed(),
        }  # fmt: skip


def split_of(*, tp: int = 1, pp: int = 1, dp: int = 1, ep: int = 1) -> str:
    """Degrees of parallelism in words: those above one."""
    degrees = {"TP": tp, "PP": pp, "DP": dp, "EP": ep}
    return " ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one GPU"


def _degrees(split: str) -> tuple[int, int, str]:
    """One GPU, then each kind alone by its degree, then several together."""
    words = split.split()
    return len(words), int(words[1]) if words[1:2] and words[1].isdecimal() else 0, split


def statistics(rows: Iterable[Row]) -> dict[str, float | int | None]:
    """cases, median_abs, p90_abs, p95_abs, max_abs, bias (median of signed errors), coverage90. None where empty."""
    found = list(rows)
    errors = np.array([row.error for row in found])
    inside = [row.inside for row in found if row.inside is not None]
    if not len(errors):
        return {"cases": 0, **dict.fromkeys(("median_abs", "p90_abs", "p95_abs", "max_abs", "bias", "coverage90"))}
    size = np.abs(errors)
    return {
        "cases": len(errors),
        "median_abs": float(np.median(size)),
        "p90_abs": float(np.percentile(size, 90)),
        "p95_abs": float(np.percentile(size, 95)),
        "max_abs": float(size.max()),
        "bias": float(np.median(errors)),
        "coverage90": sum(inside) / len(inside) if inside else None,
    }
