"""`kvsim measure`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from kvsim import __version__
from kvsim.commands.output import show, show_json
from kvsim.errors import InputError
from kvsim.progress import progress
from kvsim.trace import Trace, load, transform

_SERVER, _TRAFFIC, _OUT = "Server", "Traffic", "Output"


def command(
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The server, like http://127.0.0.1:8000",
                                     rich_help_panel=_SERVER)],
    trace: Annotated[str, typer.Option("--trace", metavar="NAME|FILE", help="Trace file, sample, or synth:PRESET",
                                       rich_help_panel=_TRAFFIC)],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the Result folder here",
                                      rich_help_panel=_OUT)],
    model: Annotated[str | None, typer.Option("--model", help="Name to ask for \\[default: the first it serves]",
                                              rich_help_panel=_SERVER)] = None,
    device: Annotated[str, typer.Option("--device", help="What it runs on, for the record",
                                        rich_help_panel=_SERVER)] = "unknown",
    engine: Annotated[str, typer.Option("--engine", help="Which engine it is, for the record",
                                        rich_help_panel=_SERVER)] = "unknown",
    vocab: Annotated[int, typer.Option("--vocab", help="Token ids of prompts lie below this",
                                       rich_help_panel=_SERVER)] = 32_000,
    as_text: Annotated[bool, typer.Option("--text", help="Send prompts as words, not as token ids",
                                          rich_help_panel=_SERVER)] = False,
    api_key_env: Annotated[str | None, typer.Option("--api-key-env", metavar="VAR", help="Variable with the API key",
                                                    rich_help_panel=_SERVER)] = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="A request that takes longer has failed",
                                         rich_help_panel=_SERVER)] = "10m",
    arrivals: Annotated[str | None, typer.Option("--arrivals", help="Arrival process, such as poisson:2",
                                                 rich_help_panel=_TRAFFIC)] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Scale arrivals to so many requests a second",
                                               rich_help_panel=_TRAFFIC)] = None,
    rate_scale: Annotated[float, typer.Option("--rate-scale", help="Multiply the arrival rate by this",
                                              rich_help_panel=_TRAFFIC)] = 1.0,
    limit: Annotated[int | None, typer.Option("--limit", help="Keep the first so many requests",
                                              rich_help_panel=_TRAFFIC)] = None,
    max_model_len: Annotated[int | None, typer.Option("--max-model-len", help="Refuse longer requests unsent",
                                                      rich_help_panel=_TRAFFIC)] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Most requests in flight; 0: as many as come",
                                             rich_help_panel=_TRAFFIC)] = 0,
    warmup: Annotated[int, typer.Option("--warmup", help="Requests before the clock starts, not recorded",
                                        rich_help_panel=_TRAFFIC)] = 2,
    seed: Annotated[int, typer.Option("--seed", help="Seed of prompts and arrivals", rich_help_panel=_TRAFFIC)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout",
                                          rich_help_panel=_OUT)] = False,
) -> int:  # fmt: skip
    """Replay a trace against a live OpenAI-compatible server (vLLM, SGLang, llama.cpp) and record a Result.

    Requests are sent when the trace says, streamed, and every token's time is kept. Ctrl-C keeps what was done.
    `kvsim compare PREDICTED MEASURED` puts a simulation beside it.

    Example: kvsim measure --url http://127.0.0.1:8000 --trace sample --limit 100 --out measured
    """
    from kvsim.engine.decode_set import NEVER
    from kvsim.units import NS_PER_S, parse_duration_ns
    from kvsim_calibration.measure.client import Load, Measurement, served_model
    from kvsim_calibration.measure.http import Server

    key = os.environ.get(api_key_env) if api_key_env else None
    if api_key_env and not key:
        raise InputError(f"--api-key-env: the variable {api_key_env} is not set")
    if min(concurrency, warmup) < 0:
        raise InputError("--concurrency and --warmup must be 0 or more")
    server = Server(url, key)
    requests = _trace(trace, arrivals, seed, limit, rate, rate_scale)

    async def measure() -> tuple[Measurement, bool]:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        asked = Load(
            model or await served_model(server), vocab, as_text, concurrency, parse_duration_ns(timeout) / NS_PER_S,
            warmup, max_model_len or NEVER, seed,
        )  # fmt: skip
        with progress("Measuring") as update:
            work = Measurement(server, asked, requests, update)
            await work.run(stop)
        return work, stop.is_set()

    work, interrupted = asyncio.run(measure())
    scenario = {"trace": trace, "model": work.load.model, "device": device, "url": url, "rate": rate,
                "rate_scale": rate_scale, "limit": limit, "concurrency": concurrency, "warmup": warmup}  # fmt: skip
    run: dict[str, Any] = {
        "scenario": scenario,
        "provenance": {"device": device, "tier": "measured", "run": f"a server at {url}", "engine": engine,
                       "model": work.load.model, "seed": seed, "version": __version__},
        "counters": {},
    }  # fmt: skip
    result = work.result(run)
    result.save(out)
    if as_json:
        show_json(result.summary)
    else:
        from kvsim.report.terminal import overview

        show(overview(result))
        show(f"\nResult: {out}")
    return 130 if interrupted else 0


def _trace(
    name: str, arrivals: str | None, seed: int, limit: int | None, rate: float | None, rate_scale: float
) -> Trace:
    trace = load(name, arrivals=arrivals, seed=seed)
    if limit:
        trace = transform.limit(trace, limit)
    if rate:
        trace = transform.set_rate(trace, rate)
    return transform.scale_rate(trace, rate_scale) if rate_scale != 1 else trace
