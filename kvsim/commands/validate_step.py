"""`kvsim validate step`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsim.commands.rung import Budget, Profile, Threads, TorchDevice, TruthModel, answer, asked_truth
from kvsim.errors import InputError


def command(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="cases.jsonl: published steps and static batches")
    ] = None,
    engine_filter: Annotated[
        str, typer.Option("--engine-filter", metavar="NAME", help="Only cases of engines that begin so (vllm, trtllm)")
    ] = "",
    device: TorchDevice = None,
    profile: Profile = None,
    model: TruthModel = "smollm2-135m",
    budget: Budget = "3m",
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout")] = False,
) -> int:
    """Whole prefill and decode steps of a fixed batch, without a scheduler: the cost model and an engine's constants.

    With a FILE, published steps: exit 1 where the median error over the steps of 2023's vLLM (Splitwise's profile) is
    above 8 %. With --device, steps of the reference engine, timed here and now: exit 1 above a median of 5 %.

    Example: kvsim validate step --device cpu --profile my-cpu.json
    """
    from kvsim.progress import progress
    from kvsim.validate.step import validate_step

    if (file is None) == (device is None):
        raise InputError("validate step needs a FILE of published steps, or --device to time the reference engine on")
    if device is not None:
        truth, asked = asked_truth(device, profile, model, budget, threads)
        with progress("Timing steps") as update:
            return answer(truth.step(asked, update), as_json)
    assert file is not None
    return answer(validate_step(file, engine_filter), as_json)
