"""What the subcommands of `kvsim validate` share: printing a Report, and the exit code it means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.commands.output import names_give_way, show, show_json

if TYPE_CHECKING:
    from rich.table import Table

    from kvsim.validate.report import Report
    from kvsim.validate.truth import Asked, Truth

_HERE = "Against the reference engine, here and now"
TorchDevice = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Run it on this: cpu, cuda:0", rich_help_panel=_HERE)
]
Profile = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help="Of this device, from `kvsim calibrate` \\[default: it "
                              "is calibrated first, for --budget]", rich_help_panel=_HERE)
]  # fmt: skip
TruthModel = Annotated[
    str, typer.Option("--model", metavar="NAME|FILE", help="Whose random weights it runs", rich_help_panel=_HERE)
]
Budget = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="Time to measure for", rich_help_panel=_HERE)
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write the Results DIR/predicted-1, DIR/measured-1 …, for "
                              "`kvsim compare`", rich_help_panel=_HERE)
]  # fmt: skip
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Of the CPU \\[default: all cores]", rich_help_panel=_HERE)
]

MOST_ROWS = 40
"""rows that are printed; --json has them all"""


def answer(report: Report, as_json: bool) -> int:
    """Print the report; 1 where a goal is missed, else 0."""
    missed = report.missed()
    if as_json:
        show_json(report.to_json())
    else:
        _print(report, missed)
    return 1 if missed else 0


def asked_truth(
    device: str, profile: Path | None, model: str, budget: str, threads: int | None, out: Path | None = None
) -> tuple[Truth, Asked]:
    """The reference engine and what it is asked. Raises InputError where it is not installed."""
    from kvsim.units import parse_duration_ns, seconds
    from kvsim.validate.truth import Asked, reference

    return reference(), Asked(device, profile, model, seconds(parse_duration_ns(budget)), threads, out)


def _print(report: Report, missed: list[str]) -> None:
    from rich.table import Table

    groups = _errors("group", f"validate {report.rung}: relative errors", report.groups())
    rows = Table("case", "metric", "predicted", "true", "error", "assumed or noted", box=None, pad_edge=False,
                 padding=(0, 2, 0, 0))  # fmt: skip
    for column in rows.columns[2:5]:
        column.justify = "right"
    names_give_way(rows)
    worst = sorted(report.rows, key=lambda row: -abs(row.error))[:MOST_ROWS]
    for row in worst if len(report.rows) > MOST_ROWS else report.rows:
        colour = "red" if row.inside is False else ""  # the truth lies outside the interval
        rows.add_row(row.id, row.metric, _number(row.predicted), _number(row.true), _percent(row.error, True),
                     row.note, style=colour)  # fmt: skip
    show(rows)
    if len(report.rows) > MOST_ROWS:
        show(f"the {MOST_ROWS} largest errors of {len(report.rows)}; --json has all")
    show("")
    show(groups)
    show("")
    if len(splits := report.splits()) > 1:
        show(_errors("GPUs", "by parallelism: how the model is spread over GPUs", splits))
        show("")
    for reason, number in report.skipped.items():
        show(f"skipped {number}: {reason}")
    for goal in report.goals:
        if report.reached(goal) is None:
            show(f"[dim]no case[/] {goal}")
            continue
        past = next((text for text in missed if text.startswith(str(goal))), None)
        show(f"[red]missed[/]  {past}" if past else f"[green]met[/]     {goal}")


def _errors(what: str, title: str, found: dict[str, dict[str, float | int | None]]) -> Table:
    """Statistics of errors, a row a group."""
    from rich import box
    from rich.table import Table

    table = Table(what, "cases", "median", "p90", "p95", "bias", "in interval", box=box.SIMPLE, show_edge=False,
                  pad_edge=False, title=title, title_justify="left")  # fmt: skip
    for column in table.columns[1:]:
        column.justify = "right"
    names_give_way(table)
    for name, errors in found.items():
        table.add_row(name, str(errors["cases"]), *(_percent(errors[key], key == "bias") for key in (
            "median_abs", "p90_abs", "p95_abs", "bias", "coverage90")))  # fmt: skip
    return table


def _percent(value: float | int | None, signed: bool = False) -> str:
    return "–" if value is None else f"{100 * value:{'+' if signed else ''}.2f} %"


def _number(value: float) -> str:
    if abs(value) >= 1e7:
        return f"{value / 1e9:.4g} G"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"
