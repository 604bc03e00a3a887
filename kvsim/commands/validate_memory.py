"""`kvsim validate memory`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.rung import answer


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="cases.jsonl: published start-up logs, a line each")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """KV blocks, tokens and bytes of published engine start-ups, against what we would predict.

    What a case states (device memory, weights, activation peak …) is used; the rest is ours and named in the table.
    Exit 1 where bytes a token are not exact, a stated budget is off by more than 1 %, or the median of assumed ones by
    more than 8 %.

    Example: kvsim validate memory cases.jsonl
    """
    from kvsim.validate.memory import validate_memory

    return answer(validate_memory(file), as_json)
