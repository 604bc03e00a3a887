"""The numbers of a summary that runs are compared by: the columns of the terminal's and the page's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.report.palette import MEMORY
from kvsim.report.terminal import brief, percent
from kvsim.units import format_bytes, format_count

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a summary: where it is, how it is written, and whether less (−1) or more (1) is better."""

    title: str
    path: tuple[str, ...]
    write: Callable[[float], str]
    better: int = 0

    @property
    def heading(self) -> str:
        """The title on one line."""
        return self.title.replace("-\n", "").replace("\n", " ")

    def value(self, summary: Summary) -> float | None:
        """The number itself; None where the summary has none."""
        found: Any = summary
        for key in self.path:
            found = (found or {}).get(key)
        return None if found is None else float(found)

    def text(self, summary: Summary) -> str:
        """The number as it is shown."""
        value = self.value(summary)
        return "–" if value is None else self.write(value)

    def best(self, summaries: Iterable[Summary]) -> str | None:
        """The best number as it is shown; None where no one shows a better one than another."""
        shown = {value: self.write(value) for value in map(self.value, summaries) if value is not None}
        if not self.better or len(set(shown.values())) < 2:
            return None
        return shown[max(shown) if self.better > 0 else min(shown)]


def _latency(name: str, at: str) -> Column:
    return Column(f"{name.upper()}\n{at}", ("latency_s", name, at), brief, -1)


SPEED = (
    _latency("ttft", "p50"),
    _latency("ttft", "p99"),
    _latency("tpot", "p50"),
    _latency("tpot", "p99"),
    _latency("e2e", "p50"),
    Column("output\ntokens/s", ("throughput", "output_tokens_per_s"), format_count, 1),
    Column("refused", ("requests", "refused"), format_count, -1),
)
SHARES = tuple(
    Column(name, ("memory", "mean", name), percent, {"reserved": -1, "internal": -1, "external": -1}.get(name, 0))
    for name in MEMORY
)
WORK = (
    Column("KV tokens", ("memory", "kv_tokens"), format_count, 1),
    Column("KV bytes", ("memory", "kv_capacity_bytes"), format_bytes),
    Column("prefix\nhits", ("cache", "prefix_hit_share"), percent, 1),
    Column("preemp-\ntions", ("cache", "preemptions"), format_count, -1),
    Column("recomputed\ntokens", ("computed_tokens", "recomputed"), format_count, -1),
    Column("prefill\ntokens", ("computed_tokens", "prefill"), format_count, -1),
)
