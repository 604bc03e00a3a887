"""`kvsim sweep`: many scenarios, over all cores or a Ray cluster; `kvsim sweep show`: what came out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.progress import progress


class Where(StrEnum):
    local = "local"
    ray = "ray"


def command(
    what: Annotated[
        list[str], typer.Argument(metavar="FILE | show DIR", help="A sweep.toml to run, or a results folder to look at")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Results folder \\[default: FILE without its suffix]")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run only what is missing or failed")] = False,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes \\[default: one a core]")] = None,
    executor: Annotated[Where, typer.Option(help="Where runs run")] = Where.local,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A Ray cluster; auto finds one on this machine")
    ] = None,
    by: Annotated[str, typer.Option(metavar="METRIC", help="show: best by this column")] = "output_tokens_per_s",
    top: Annotated[int, typer.Option(metavar="N", min=1, help="show: so many rows")] = 10,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="show: write a page")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> None:
    """Run a grid or list of scenarios; what is done survives anything. Exit code 1: some runs failed.

    Example: kvsim sweep sweep.toml --resume && kvsim sweep show sweep --by ttft_p99 --html sweep.html
    """
    if what[0] == "show" and len(what) == 2:
        _show(Path(what[1]), by, top, html, as_json)
    elif len(what) == 1 and what[0] != "show":
        _run(Path(what[0]), out, resume, jobs, executor, address, as_json)
    else:
        raise InputError(f"sweep {' '.join(what)} is not understood: write sweep FILE, or sweep show DIR")


def _run(
    file: Path, out: Path | None, resume: bool, jobs: int | None, where: Where, address: str | None, as_json: bool
) -> None:
    from kvsim.sweep import Store, read_sweep, sweep
    from kvsim.sweep.on_ray import Ray
    from kvsim.workers import Executor, Local

    if address and where is Where.local:
        raise InputError("--address is of a Ray cluster: it goes with --executor ray")
    scenarios = read_sweep(file)
    store = Store(out or file.with_suffix(""))
    executor: Executor = Ray(address) if where is Where.ray else Local(jobs) if jobs else Local()
    with progress("Sweeping") as update:
        outcome = sweep(scenarios, store, resume=resume, executor=executor, progress=update)
    if as_json:
        show_json({"folder": str(store.folder), "scenarios": outcome.scenarios, "ran": outcome.ran,
                   "failed": outcome.failed})
    else:
        counts = f"{outcome.scenarios:,} scenarios, {outcome.ran:,} run now, {len(outcome.failed):,} failed"
        show(f"{counts}: {store.folder}")
        for key, why in outcome.failed.items():
            show(f"  {key}: {why}")
    if outcome.failed:
        raise typer.Exit(1)


def _show(folder: Path, by: str, top: int, html: Path | None, as_json: bool) -> None:
    from kvsim.report.swept import best_rows, swept_table
    from kvsim.sweep import Store

    table = Store(folder).table()
    rows = best_rows(table, by, top)
    if html:
        from kvsim.report.files import write_text
        from kvsim.report.swept_page import swept_page

        with progress("Drawing the page") as update:
            write_text(html, swept_page(folder.name, table, by, update))
    if as_json:
        show_json({"folder": str(folder), "by": by, "rows": rows.to_dicts()})
    else:
        show(swept_table(table, rows, by))
        if html:
            show(f"\nReport: {html}")
