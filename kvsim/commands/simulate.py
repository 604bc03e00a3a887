"""`kvsim simulate`: replay one trace under one cache policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.options import Build, with_scenario
from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.progress import progress
from kvsim.registry import unknown
from kvsim.units import parse_duration_ns, seconds

_SLO_KEYS = ("ttft", "tpot", "e2e", "queue")


@with_scenario()
def command(
    build: Build,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the Result folder here", rich_help_panel="Output"),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with charts, readable offline", rich_help_panel="Output"),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS", help="Count requests that meet limits: ttft=2s,tpot=50ms", rich_help_panel="Output"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout", rich_help_panel="Output")
    ] = False,
) -> None:
    """Replay a trace: latency, throughput, and where the KV cache's memory went.

    Example: kvsim simulate --trace sample --model llama-3.1-8b --device h100-sxm --policy paged-prefix
    """
    from kvsim.simulate import run

    limits = parse_slo(slo) if slo else None
    with progress("Simulating") as update:
        result = run(build(), update)
    if limits:
        result.run["slo"] = limits
    if out:
        result.save(out)
    if html:
        from kvsim.report.page import write_page
        from kvsim.report.terminal import policy_name

        with progress("Drawing the page") as update:
            write_page(html, {policy_name(result.run) or "run": result}, update)
    if as_json:
        show_json(result.summary)
    else:
        from kvsim.report.terminal import overview

        show(overview(result))
        if html:
            show(f"\nReport: {html}")


def parse_slo(text: str) -> dict[str, float]:
    """`"ttft=2s,tpot=50ms"` → {"ttft": 2.0, "tpot": 0.05}, in seconds."""
    limits = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise InputError(f"--slo {part!r} is not understood: write metric=limit, such as ttft=2s")
        if name not in _SLO_KEYS:
            raise InputError(f"--slo: {unknown('metric', name, list(_SLO_KEYS))}")
        try:
            limits[name] = seconds(parse_duration_ns(value))
        except InputError as error:
            raise InputError(f"--slo {name}: {error}") from None
    return limits
