"""`kvsim validate fragmentation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.rung import answer


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="cases.jsonl: published shares, a line each")],
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="Lengths of ShareGPT requests, any trace format")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """Shares of KV memory under Orca's reservations and paged blocks, against the PagedAttention paper.

    The paper names neither trace nor rate: the queue is never empty here, and nothing is tuned. Exit 1 where the share
    that holds tokens is off by more than 15 %.

    Example: kvsim validate fragmentation cases.jsonl sharegpt_lengths.csv
    """
    from kvsim.trace.loading import load
    from kvsim.validate.fragmentation import validate_fragmentation

    return answer(validate_fragmentation(file, load(trace, untimed="poisson:1")), as_json)
