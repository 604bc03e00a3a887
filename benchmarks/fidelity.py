"""Writes the tables of docs/fidelity.md from what `kvsim validate … --json` printed: no number there is typed by hand.

    kvsim validate memory cases.jsonl --json > out/memory.json            (step, serving, kernel … likewise)
    kvsim validate serving runs.tar.xz --json > out/runs.json
    python benchmarks/fidelity.py out docs/fidelity.md

A table stands between `<!-- NAME -->` and `<!-- end -->`; NAME is a file of `out`. `NAME.rows` lists every row,
`NAME.worst` the largest errors, `NAME.metrics` the errors by group and metric, `NAME.splits` by parallelism; files may
be joined: `runs+step`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvsim.validate.report import Report, Row, statistics

WORST = 12
FIELDS = ("id", "group", "metric", "predicted", "true", "note")


def main(folder: Path, document: Path) -> None:
    text = document.read_text()

    def fill(match: re.Match[str]) -> str:
        name, _, kind = match[1].partition(".")
        found = [json.loads((folder / f"{part}.json").read_text()) for part in name.split("+")]
        return f"<!-- {match[1]} -->\n{table(found, kind)}\n<!-- end -->"

    document.write_text(re.sub(r"<!-- (?!end)([^ ]+) -->\n.*?<!-- end -->", fill, text, flags=re.S))


def table(found: list[dict[str, Any]], kind: str) -> str:
    rows = [
        Row(**{name: r[name] for name in FIELDS}, rounding=r.get("rounding", 0.0),
            interval=tuple(r["interval"]) if r["interval"] else None, split=r.get("split", ""))
        for report in found for r in report["rows"]
    ]  # fmt: skip
    if kind == "rows":
        return listed(rows)
    if kind == "worst":
        return listed(sorted(rows, key=lambda row: -abs(row.error))[:WORST])
    if kind == "splits":
        return by_split(rows)
    lines = ["| group | cases | median | p90 | bias | in the 90 % interval |", "|---|---:|---:|---:|---:|---:|"]
    groups = {row.group: row.group for row in rows} if kind != "metrics" else {
        f"{row.group} {row.metric}": row.group for row in rows}  # fmt: skip
    for name in groups:
        inside = [row for row in rows if name in (row.group, f"{row.group} {row.metric}")]
        lines.append(line(name, inside))
    lines.append(line("all", rows))
    skipped = {reason: count for report in found for reason, count in report["skipped"].items()}
    missed = [goal for report in found for goal in report["missed"]]
    lines += ["", *(f"Skipped {count}: {reason}." for reason, count in skipped.items())]
    lines += ["", *(f"* Goal missed: {goal}" for goal in missed)] if missed else ["", "All goals met."]
    return "\n".join(lines)


def by_split(rows: list[Row]) -> str:
    lines = ["| parallelism | cases | median | p90 | bias | in the 90 % interval |", "|---|---:|---:|---:|---:|---:|"]
    return "\n".join(lines + [line(name, [row for row in rows if row.split == name])
                              for name in Report("", rows).splits()])


def line(name: str, rows: Iterable[Row]) -> str:
    found = statistics(rows)
    cells = [share(found[key], key == "bias") for key in ("median_abs", "p90_abs", "bias", "coverage90")]
    return f"| {name} | {found['cases']} | {' | '.join(cells)} |"


def listed(rows: list[Row]) -> str:
    lines = ["| case | metric | predicted | true | error | inside | tier or what was assumed |",
             "|---|---|---:|---:|---:|---|---|"]  # fmt: skip
    for row in rows:
        inside = "" if row.inside is None else "yes" if row.inside else "no"
        lines.append(f"| {row.id} | {row.metric} | {row.predicted:.4g} | {row.true:.4g} | {share(row.error, True)} | "
                     f"{inside} | {row.note} |")  # fmt: skip
    return "\n".join(lines)


def share(value: float | int | None, signed: bool = False) -> str:
    return "–" if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
