"""`kvsim validate server`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from kvsim.errors import InputError


def command(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", help="TOML file with the keys of `kvsim simulate`: "
                                             "trace, model, device profile, engine, its limits")],
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The server, like http://127.0.0.1:8000")],
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be "
                                                   "repeated")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="How often the trace is served")] = 3,
    fit: Annotated[bool, typer.Option("--fit/--no-fit", help="Fit the engine's constants on batches of its own first "
                                      "\\[about a minute on a small model]")] = True,
    name: Annotated[str | None, typer.Option("--name", help="Model name to ask for \\[default: the first it "
                                             "serves]")] = None,
    vocab: Annotated[int, typer.Option("--vocab", help="Token ids of prompts lie below this")] = 32_000,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="A request that takes longer has "
                                         "failed")] = "10m",
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", metavar="VAR", help="Variable with the API "
                                                    "key")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the Results DIR/predicted, "
                                             "DIR/measured-1 …, for `kvsim compare`")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:  # fmt: skip
    """A scenario, first predicted, then served by a live server: total time, TTFT, TPOT and throughput.

    The prediction is made before the traffic is sent. Only the engine's constants come from the server: from batches
    of known size, which are not part of the traffic. Exit 1 where the total time is off by more than 6 %, or a mean
    latency or the throughput by more than 8 %.

    Example: kvsim validate server docs/vllm-cpu.toml --set device=cpu.json --url http://127.0.0.1:8000 --out served
    """
    from kvsim.commands.rung import answer
    from kvsim.progress import progress
    from kvsim.scenario import Scenario
    from kvsim.units import NS_PER_S, parse_duration_ns
    from kvsim_calibration.measure.client import Load, served_model
    from kvsim_calibration.measure.http import Server
    from kvsim_calibration.measure.rung import Asked

    key = os.environ.get(api_key_env) if api_key_env else None
    if api_key_env and not key:
        raise InputError(f"--api-key-env: the variable {api_key_env} is not set")
    server, asked = Server(url, key), Scenario.build(file=scenario, sets=sets or ())

    async def compared() -> int:
        load = Load(name or await served_model(server), vocab, timeout_s=parse_duration_ns(timeout) / NS_PER_S)
        with progress("Serving") as update:
            report = await Asked(asked, server, load, runs, fit, out).report(update)
        return answer(report, as_json)

    return asyncio.run(compared())
