"""`kvsim validate hit-rate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.rung import answer


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="cases.jsonl: published hit rates, a line each")],
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="The trace that they are about, with block ids")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """Published hit rates of a trace (by size of the cache and eviction order), against an offline replay.

    Exit 1 where one is off by more than 10 %.

    Example: kvsim validate hit-rate cases.jsonl mooncake_conversation.jsonl
    """
    from kvsim.trace.loading import load
    from kvsim.validate.hit_rate import validate_hit_rate

    return answer(validate_hit_rate(file, load(trace)), as_json)
