"""`kvsim validate step`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.rung import answer


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="cases.jsonl: published steps and static batches")],
    engine_filter: Annotated[
        str, typer.Option("--engine-filter", metavar="NAME", help="Only cases of engines that begin so (vllm, trtllm)")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """Whole prefill and decode steps of a fixed batch, without a scheduler: the cost model and an engine's constants.

    Exit 1 where the median error over the steps of 2023's vLLM (Splitwise's profile) is above 8 %.

    Example: kvsim validate step cases.jsonl
    """
    from kvsim.validate.step import validate_step

    return answer(validate_step(file, engine_filter), as_json)
