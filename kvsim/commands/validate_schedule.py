"""`kvsim validate schedule`: recordings of real engines' schedulers, step against step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.output import names_give_way, show, show_json
from kvsim.progress import progress


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Recordings (.json or .json.gz)")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> None:
    """Replay recordings of vLLM's and SGLang's schedulers; exit 1 unless every step is identical.

    Example: kvsim validate schedule recordings/*.json.gz
    """
    from kvsim.validate.schedule import compare

    found = []
    with progress("Replaying") as update:
        for number, file in enumerate(files):
            found.append(compare(file))
            update(number + 1, len(files))
    steps = sum(one.steps for one in found)
    identical = sum(one.identical for one in found)
    if as_json:
        share = identical / steps if steps else None
        show_json({"rung": "schedule", "identical_share": share, "files": [one.to_json() for one in found]})
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name, justify in (("recording", "left"), ("engine", "left"), ("steps", "right"), ("identical", "right")):
            table.add_column(name, justify=justify)  # type: ignore[arg-type]
        names_give_way(table)
        for one in found:
            style = None if one.identical == one.steps else "red"
            table.add_row(one.file, one.engine, f"{one.steps:,}", f"{one.identical:,}", style=style)
        show(table)
        for one in found:
            if one.first_difference:
                first = one.first_difference
                show(f"\n{one.file}, step {first['step']}:")
                show(f"  theirs {json.dumps(first['theirs'])[:400]}")
                show(f"  ours   {json.dumps(first['ours'])[:400]}")
        show(f"\n{identical:,} of {steps:,} steps identical")
    if identical != steps:
        raise typer.Exit(1)
