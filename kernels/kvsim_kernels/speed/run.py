"""Measure points one after the other, each on disk when it is done, and show them against their ceilings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Protocol

import torch

from .attempt import attempt, grace
from .points import Launch, Point
from .record import Record, Row
from .timing import Timing

MOST_SETS = 256
RIVAL_SECONDS = 240  # FlashInfer compiles when it is first called
L2_MULTIPLE = 5
HEADER = ("kernel", "case", "us (p20 - p80)", "GB/s", "TFLOP/s", "of ceiling", "others, us", "error")


class Timer(Protocol):
    def __call__(self, launches: Sequence[Launch]) -> Timing: ...


def sets(point: Point, l2_bytes: int) -> int:
    """Sets of buffers that take turns, so that together they are 5 times the L2 cache; `MOST_SETS` at most."""
    return min(MOST_SETS, max(1, -(-L2_MULTIPLE * l2_bytes // max(1, point.footprint))))


def measured(
    point: Point, device: torch.device, timer: Timer, l2_bytes: int, patience: Callable[[int], None] = lambda _: None
) -> Row:
    """Time a point, check what the timed launches left behind, then time its rivals on the same buffers.

    patience: told how many seconds from now are in order, where that is more than usual.
    """
    count = sets(point, l2_bytes)
    subjects = [point.make(device, 100 * seed) for seed in range(count)]
    timing = timer([subject.launch for subject in subjects])
    error = subjects[-1].error()
    rivals: Row = {}
    for name in subjects[0].rivals:
        patience(RIVAL_SECONDS)
        try:
            rivals[name] = timer([subject.rivals[name]() for subject in subjects]).median_ns
        except Exception as problem:  # someone else's code must not end the run: the table says what happened
            rivals[name] = f"failed: {problem}".splitlines()[0][:200]
    return {
        "kernel": point.kernel,
        "case": point.case,
        "ceiling": point.ceiling,
        "bytes": point.bytes,
        "flops": point.flops,
        **asdict(timing),
        "sets": count,
        "cold": count * point.footprint >= L2_MULTIPLE * l2_bytes,
        "error": error if math.isfinite(error) else None,
        "bound": point.bound,
        "ok": error <= point.bound,
        "rivals_ns": rivals,
    }


def run(
    points: Iterable[Point],
    device: torch.device,
    record: Record,
    timer: Timer,
    l2_bytes: int,
    seconds: float,
    tell: Callable[[str], None],
) -> int:
    """Measure what the record lacks, for at most about `seconds`; the number of points that are left.

    A point that fails or does not fit the free memory has a row that says so. Raises Again, see `attempt`.
    """
    done, end, left = record.rows(), time.monotonic() + seconds, 0
    for point in points:
        if (point.kernel, point.case) in done:
            continue
        if time.monotonic() > end:
            left += 1
            continue
        make = partial(measured, point, device, timer, l2_bytes, partial(grace, device))
        row = attempt(point.kernel, point.case, make, device, record)
        tell(f"{point.kernel}, {point.case}: {outcome(row)}")
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return left


def outcome(row: Row) -> str:
    if "median_ns" not in row:
        return str(row.get("failed") or row["skipped"])
    return f"{row['median_ns'] / 1e3:.1f} us{'' if row['ok'] else ', WRONG RESULT'}"


def shares(rows: Iterable[Row]) -> list[Row]:
    """Rows with `gb_per_s`, `tflop_per_s` and `share`, the speed over the measured ceiling's (None without one).

    Those without a time stay as they are.
    """
    found = list(rows)
    best: dict[str, float] = {}
    for row in found:
        if "median_ns" in row and row["kernel"].startswith("ceiling "):
            best[row["ceiling"]] = rate(row)
    return [
        row
        if "median_ns" not in row
        else {
            **row,
            "gb_per_s": row["bytes"] / row["median_ns"],
            "tflop_per_s": row["flops"] / row["median_ns"] / 1e3,
            "share": rate(row) / best[row["ceiling"]] if best.get(row["ceiling"]) else None,
        }
        for row in found
    ]


def rate(row: Row) -> float:
    """Bytes, or FLOPs where computing is the limit, a nanosecond."""
    return float((row["flops"] if row["ceiling"] == "gemm" else row["bytes"]) / row["median_ns"])


def table(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Columns of the results: a header, then a line a row."""
    lines: list[tuple[str, ...]] = [HEADER]
    for row in rows:
        if "median_ns" not in row:
            lines.append((row["kernel"], row["case"], outcome(row), "", "", "", "", ""))
            continue
        share = "" if row["share"] is None or row["kernel"].startswith("ceiling ") else f"{row['share']:.0%}"
        lines.append((
            row["kernel"],
            row["case"] + ("" if row["cold"] else ", warm L2"),
            f"{row['median_ns'] / 1e3:.2f} ({row['p20_ns'] / 1e3:.2f} - {row['p80_ns'] / 1e3:.2f})",
            f"{row['gb_per_s']:.0f}",
            f"{row['tflop_per_s']:.1f}",
            share,
            ", ".join(f"{name} {shown(ns)}" for name, ns in row["rivals_ns"].items()),
            ("NaN" if row["error"] is None else f"{row['error']:.1e}") + ("" if row["ok"] else " WRONG"),
        ))  # fmt: skip
    return lines


def shown(ns: float | str) -> str:
    return ns if isinstance(ns, str) else f"{ns / 1e3:.2f}"


def markdown(lines: Sequence[tuple[str, ...]]) -> str:
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, f"|{'---|' * len(lines[0])}", *body]) + "\n"


def report(environment: Row, rows: Iterable[Row]) -> str:
    """The table with what it was measured on, as Markdown; rows as `shares` gives them."""
    facts = "".join(f"- {name}: {value}\n" for name, value in environment.items())
    return f"{facts}\n{markdown(table(rows))}"
