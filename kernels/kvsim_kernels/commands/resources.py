"""`resources`: compile every kernel for every chip, without a GPU, and hold each to its chip's limits."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .. import build, grid
from ..launch import Kernel


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default=",".join(build.ARCHS), help="chips, comma-separated (default: %(default)s)")
    parser.add_argument("--kernel", default="", help="only instantiations with this in their name")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--markdown", action="store_true", help="a table by kernel on stdout, as in README.md")


def rows(kernels: Iterable[Kernel], archs: Iterable[str], jobs: int = 2) -> Iterator[dict[str, Any]]:
    """One row a kernel and chip; `ok` says whether it spills nothing, has no stack and fits the shared memory."""

    def row(pair: tuple[Kernel, str]) -> dict[str, Any]:
        kernel, arch = pair
        made = build.cubin(kernel.source, kernel.expression, arch)
        shared, limit = made.static_shared_bytes + kernel.shared_bytes, build.SHARED_KIB[arch] << 10
        return {
            "kernel": kernel.expression,
            "arch": arch,
            "registers": made.registers,
            "threads": kernel.threads,
            "shared_bytes": shared,
            "shared_limit": limit,
            "spill_bytes": made.spill_bytes,
            "stack_bytes": made.stack_bytes,
            "ok": made.spill_bytes == 0 and made.stack_bytes == 0 and shared <= limit,
        }

    build.nvrtc_version()                   # imports cuda.core, which does not bear two threads importing it at once
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(row, [(kernel, arch) for kernel in kernels for arch in archs])


def markdown(found: Iterable[dict[str, Any]], archs: Sequence[str]) -> str:
    """A line for each kernel: instantiations, fewest and most registers for each chip, most shared memory, spills."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        kernels.setdefault(row["kernel"].partition("<")[0], []).append(row)
    head = ["kernel", "variants", *archs, "shared KiB", "spills, stack"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, rows in kernels.items():
        registers = [[row["registers"] for row in rows if row["arch"] == arch] for arch in archs]
        spans = [str(min(few)) if min(few) == max(few) else f"{min(few)}–{max(few)}" for few in registers]
        shared = max(row["shared_bytes"] for row in rows) / 1024
        spoiled = sum(row["spill_bytes"] + row["stack_bytes"] for row in rows)
        lines.append(f"| `{name}` | {len(registers[0])} | {' | '.join(spans)} | {shared:.3g} | {spoiled} |")
    return "\n".join(lines)


def run(asked: argparse.Namespace) -> int:
    """Exit code 0 if every row is ok, 1 if not."""
    archs = build.chips(asked.arch)
    found = []
    for row in rows([kernel for kernel in grid.variants() if asked.kernel in kernel.expression], archs, asked.jobs):
        found.append(row)
        print(
            f"{row['kernel']:60s} {row['arch']:7s} {row['registers']:4d} registers"
            f" {row['shared_bytes']:7d} of {row['shared_limit']} shared bytes"
            f" {row['spill_bytes']:4d} spilled {row['stack_bytes']:4d} stack {'' if row['ok'] else 'FAILED'}",
            file=sys.stderr,
            flush=True,
        )
    failed = sum(not row["ok"] for row in found)
    if asked.json:
        print(json.dumps({"rows": found, "failed": failed}))
    if asked.markdown:
        print(markdown(found, archs))
    print(f"{len(found)} rows, {failed} failed", file=sys.stderr)
    return 1 if failed or not found else 0
