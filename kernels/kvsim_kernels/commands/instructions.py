"""`instructions`: what a warp of the tensor-core decode issues for each token, counted in the cubins."""

from __future__ import annotations

import argparse
import json

import torch

from .. import build, sass
from ..caches import Format
from ..decode import TOKENS, plan

HEAD_DIM = 128
FORMATS: list[tuple[Format, int]] = [("bf16", 0), ("int8", 0), ("fp8", 0), ("int4", 32), ("int4", 128)]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default=",".join(build.ARCHS), help="chips, comma-separated (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")


def run(asked: argparse.Namespace) -> int:
    """Prints a table by cache format and query heads a KV head; branches that are rarely taken are counted too."""
    archs = build.chips(asked.arch)
    rows = []
    for format, group in FORMATS:
        for heads in (8, 16):
            kernel = plan(torch.bfloat16, format, HEAD_DIM, heads, group, "tensor-cores").kernel
            cubins = {arch: build.cubin(kernel.source, kernel.expression, arch) for arch in archs}
            counts = {arch: sass.loop_instructions(made.code, made.symbol, arch) for arch, made in cubins.items()}
            cache = f"{format}, groups of {group}" if group else format
            rows.append({"cache": cache, "heads": heads, **{arch: count / TOKENS for arch, count in counts.items()}})
    if asked.json:
        print(json.dumps({"head_dim": HEAD_DIM, "rows": rows}))
        return 0
    head = ["cache", "heads a KV head", *archs]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for row in rows:
        print(f"| {row['cache']} | up to {row['heads']} | {' | '.join(f'{row[arch]:.1f}' for arch in archs)} |")
    return 0
