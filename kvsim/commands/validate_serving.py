"""`kvsim validate serving`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.rung import Budget, Out, Profile, Threads, TruthModel, answer, asked_truth
from kvsim.errors import InputError


def command(
    where: Annotated[
        Path | None, typer.Argument(metavar="FILE|DIR", help="cases.jsonl, or a measured run: folder or tar")
    ] = None,
    engine_filter: Annotated[
        str, typer.Option("--engine-filter", metavar="NAME", help="Only cases of engines that begin so (vllm, trtllm)")
    ] = "",
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME|FILE", help="GPU of a measured run, instead of its own "
                                 "word; with --engine, torch's name of what it runs on \\[default: cpu]")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="reference", help="Serve a short trace with it, here and now")
    ] = None,
    profile: Profile = None,
    model: TruthModel = "smollm2-135m",
    budget: Budget = "3m",
    threads: Threads = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """TTFT, TPOT and throughput under load: published figures of real engines, or measured runs, request by request.

    A case is simulated as it describes itself, in its own unit; what it needs and nobody states is skipped and counted.
    A measured run (requests.jsonl, meta.json) is replayed: the same requests, times, prefixes and limits.
    With --engine reference a trace is predicted, then served by kvsim's own engine on this machine.
    Exit 1 where a goal is missed: a median error of 10 % or p90 of 25 % for an engine, 3 to 15 % for a measured run,
    8 % for the reference engine.

    Example: kvsim validate serving cases.jsonl --engine-filter lmdeploy
    """
    from kvsim.progress import progress
    from kvsim.validate.serving import validate_cases
    from kvsim.validate.serving_runs import is_run, validate_runs

    if (where is None) == (engine is None):
        raise InputError("validate serving needs a FILE or DIR of measurements, or --engine reference")
    if engine is not None:
        if engine != "reference":
            raise InputError(f"--engine {engine}: only `reference` can be run here; others are measured, see "
                             "`kvsim measure`")  # fmt: skip
        truth, asked = asked_truth(device or "cpu", profile, model, budget, threads, out)
        with progress("Serving") as update:
            return answer(truth.serving(asked, update), as_json)
    assert where is not None
    with progress("Validating") as update:
        if is_run(where):
            report = validate_runs(where, device, update)
        else:
            report = validate_cases(where, engine_filter, update)
    return answer(report, as_json)
