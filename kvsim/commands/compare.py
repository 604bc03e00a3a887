"""`kvsim compare`: the same trace under several policies, or two Result folders, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.commands.options import Build, with_scenario
from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.progress import progress
from kvsim.result import Result
from kvsim.scenario import Scenario

if TYPE_CHECKING:
    from kvsim.trace import Trace

POLICIES = "contiguous,paged,paged-prefix,paged-int8"
_LONG = 3000
"""requests from which starting a process a core pays"""


@with_scenario("policy")
def command(
    build: Build,
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULT", help="Result folders to compare, instead of simulating"),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C", help=f"Policies by name, first one first \\[default: {POLICIES}]", rich_help_panel="What"
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with charts, readable offline", rich_help_panel="Output"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a Result folder per policy in here", rich_help_panel="Output"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout", rich_help_panel="Output")
    ] = False,
) -> None:
    """The same trace under several cache policies: the best of each column is marked.

    Example: kvsim compare --trace sample --model llama-3.1-8b --device h100-sxm --policies contiguous,paged
    """
    if results and (given := [*build.given, *(["--policies"] if policies else [])]):
        raise InputError(f"{given[0]} says what to simulate, but Result folders are compared as they are: leave it out")
    runs = _load(results) if results else _simulate(build, _names(POLICIES if policies is None else policies))
    if out:
        for name, result in runs.items():
            result.save(out / name)
    if html:
        from kvsim.report.page import write_page

        with progress("Drawing the page") as update:
            write_page(html, runs, update)
    if as_json:
        show_json({"runs": {name: result.summary for name, result in runs.items()}})
    else:
        from kvsim.report.quality import beside
        from kvsim.report.side_by_side import side_by_side

        show(side_by_side(runs))
        if quality := beside(runs):
            show("")
            show(quality)
        if html:
            show(f"\nReport: {html}")


def _names(policies: str) -> list[str]:
    names = [name.strip() for name in policies.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(f"--policies is {policies!r}; it must name each policy once, such as contiguous,paged")
    return names


def _simulate(build: Build, policies: list[str]) -> dict[str, Result]:
    from kvsim.simulate import check, trace_of
    from kvsim.workers import Failure, InProcess, Local

    base = build()
    scenarios = [base.replace(policy=policy) for policy in policies]
    for scenario in scenarios:
        check(scenario)  # bad input ends here, in this process, before anything long
    trace = trace_of(base)
    long = len(trace) >= _LONG and len(policies) > 1
    runs: dict[str, Result] = {}
    with progress("Comparing") as update:
        for number, answer in (Local() if long else InProcess()).run(_run, trace, scenarios):
            if isinstance(answer, Failure):
                raise RuntimeError(f"{policies[number]}: {answer.message}\n{answer.detail}")
            runs[policies[number]] = answer
            update(len(runs), len(policies))
    return {policy: runs[policy] for policy in policies}


def _run(trace: Trace, scenario: Scenario) -> Result:
    from kvsim.simulate import run

    return run(scenario, trace=trace)


def _load(folders: list[Path]) -> dict[str, Result]:
    if len(folders) < 2:
        raise InputError(f"{folders[0]}: one Result folder is nothing to compare; name two or more")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a Result folder is named twice; name each once")
    names = [folder.name for folder in folders]
    labels = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    return {label: Result.load(folder) for label, folder in zip(labels, folders, strict=True)}
