"""`kvsim validate`: how far off are the predictions? One subcommand a rung of the ladder of fidelity.

A rung is a module `kvsim.commands.validate_<rung>` with a function `command`; it is added to the list below. A
satellite adds one by the entry-point group `kvsim.rungs` ("name = module:function").
"""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

from kvsim.commands import (
    validate_fragmentation,
    validate_hit_rate,
    validate_memory,
    validate_schedule,
    validate_serving,
    validate_step,
)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    help="How far off the predictions are, against true values. Exit 1 where a goal is missed.\n\n"
    "Example: kvsim validate memory cases.jsonl",
)


@app.callback()
def _rungs() -> None:
    """Keeps `kvsim validate memory` a subcommand, however few there are."""


app.command("fragmentation")(validate_fragmentation.command)
app.command("hit-rate")(validate_hit_rate.command)
app.command("memory")(validate_memory.command)
app.command("schedule")(validate_schedule.command)
app.command("serving")(validate_serving.command)
app.command("step")(validate_step.command)
for _rung in entry_points(group="kvsim.rungs"):  # satellites' rungs: a command each, light to import
    app.command(_rung.name)(_rung.load())
