"""`kvsim plan`: how much of which hardware holds the objectives for this traffic."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.options import Build, with_scenario
from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.progress import progress

_PANEL = "What"


@with_scenario(
    "device", "policy", "tp", "pp", "ep", "replicas", "router", "mix", "prefill_replicas", "transfer", "failures",
    "on_failure", "autoscale",
)
def command(
    build: Build,
    devices: Annotated[
        str, typer.Option(metavar="D1,D2", help="Devices by name, or profile JSONs", rich_help_panel=_PANEL)
    ],
    slo: Annotated[
        str,
        typer.Option(
            metavar="LIMITS", rich_help_panel=_PANEL,
            help="ttft, tpot, itl, e2e or queue _p50 … _p99.9, _mean or _max; ttft=2s,goodput=99% limits each request; "
            "refused=1%",
        ),
    ] = "ttft_p99=2s,tpot_p99=50ms",
    policies: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Policies by name \\[default: the engine's]", rich_help_panel=_PANEL),
    ] = None,
    tp: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,4", help="GPUs a copy \\[default: the fewest that hold the model, and twice that]",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="D1=2.5,D2=1", help="Price of a GPU for an hour; there is no built-in list",
                     rich_help_panel=_PANEL),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Requests that judge the best candidates \\[default: up to 20000]",
                     rich_help_panel="Run"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes \\[default: one a core]", rich_help_panel="Run")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with charts", rich_help_panel="Output")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout", rich_help_panel="Output")
    ] = False,
) -> None:
    """How many GPUs, of which kind, under which policy, at what cost. Exit code 1: the objectives are out of reach.

    Example: kvsim plan --trace sample --model llama-3.1-8b --devices h100-sxm,l40s --slo ttft_p99=2s,tpot_p99=50ms
    """
    from kvsim.plan import Objectives, plan
    from kvsim.workers import Local

    objectives = Objectives.parse(slo)
    names = _names(devices, "--devices", "h100-sxm,l40s")
    prices = _prices(price or [])
    sizes = [_whole(text) for text in _names(tp, "--tp", "1,2,4")] if tp else []
    kinds = _names(policies, "--policies", "paged,paged-prefix") if policies else []
    scenario = build(device=names[0])
    with progress("Planning") as update:
        answer = plan(
            scenario, objectives, devices=names, policies=kinds, tps=sizes, prices=prices, requests=requests,
            executor=Local(jobs) if jobs else Local(), progress=update,
        )
    if html:
        from kvsim.report.capacity_page import write_capacity_page

        with progress("Drawing the page") as update:
            write_capacity_page(html, answer, scenario, update)
    if as_json:
        show_json(answer.to_json())
    else:
        from kvsim.report.capacity import capacity

        show(capacity(answer, scenario))
        if html:
            show(f"\nReport: {html}")
    if answer.answer is None:
        raise typer.Exit(1)


def _names(text: str, option: str, example: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise InputError(f"{option} is {text!r}; it must name each once, such as {example}")
    return names


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--tp {text!r} is no number of GPUs; write for instance --tp 1,2,4")
    return int(text)


def _prices(texts: list[str]) -> dict[str, float]:
    prices = {}
    for part in filter(None, (piece.strip() for text in texts for piece in text.split(","))):
        name, _, value = part.rpartition("=")
        try:
            prices[name] = float(value)
        except ValueError:
            prices[name] = math.nan
        if not name or not (math.isfinite(prices[name]) and prices[name] > 0):
            raise InputError(f"--price {part!r} is not understood: write device=price, such as h100-sxm=2.5")
    return prices
