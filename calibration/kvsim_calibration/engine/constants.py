"""The constants of an engine, from steps that were timed where it runs: what it adds to what the device's curves say.

It adds something to every step, to each sequence in it and to a prompt, and takes a factor of the device's time: 1 for
the kernels that the curves are of (more where there is a prompt), any for an engine with kernels of its own. Least
squares of the relative errors, none negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvsim.cost import CostModel
from kvsim_calibration.engine.steps import Step


@dataclass(frozen=True)
class Timed:
    """Steps that follow each other, and the ns that they took in all."""

    steps: tuple[Step, ...]
    ns: float


def fitted(cost: CostModel, timed: Iterable[Timed], own_kernels: bool = False) -> CostModel:
    """`cost` with the constants that explain these times best; `own_kernels`: the engine's are not the curves'."""
    from scipy.optimize import nnls

    bare = CostModel(cost.geometry, cost.device)
    rows, decodes = [], []
    for case in timed:
        device = [bare.step(step.shape()) for step in case.steps]
        prompts = [ns for step, ns in zip(case.steps, device, strict=True) if step.chunks]
        sequences = sum(len(step.contexts) + len(step.chunks) for step in case.steps)
        rows.append([n / case.ns for n in (len(device), sequences, len(prompts), sum(prompts))])
        decodes.append((sum(device) - (sum(prompts) if own_kernels else 0)) / case.ns)
    known = np.array(decodes)
    columns = np.column_stack([rows, known]) if own_kernels else np.array(rows)
    scale = np.linalg.norm(columns, axis=0)  # columns of one size, from nanoseconds to a factor
    scale[scale == 0] = 1.0
    found = (nnls(columns / scale, np.ones(len(known)) if own_kernels else 1 - known)[0] / scale).tolist()
    every, sequence, extra, factor, kernels = (*found[:3], found[3] / (found[4] or 1.0), found[4]) if own_kernels else (
        *found[:3], 1 + found[3], 1.0)
    host = replace(cost.host, exposed_ns=every, exposed_per_sequence_ns=sequence, exposed_prefill_ns=extra,
                   prompt_factor=factor)  # fmt: skip
    return CostModel(cost.geometry, cost.device, host).scaled(kernels or 1.0, host=1.0)


def centred(cost: CostModel, timed: Sequence[Timed]) -> CostModel:
    """`cost` with all times scaled, so that these steps take together what they took: where some were disturbed, least
    squares of relative errors believe the faster ones."""
    predicted = sum(cost.step(step.shape()) for case in timed for step in case.steps)
    return cost.scaled(sum(case.ns for case in timed) / predicted)


def words(cost: CostModel) -> str:
    """The constants, as people read them."""
    host, kernels = cost.host, "" if cost.factor == 1 else f"kernels × {cost.factor:.3f}, "
    return (f"{kernels}{host.exposed_ns / 1e6:.2f} ms a step, {host.exposed_per_sequence_ns / 1e6:.3f} ms a sequence, "
            f"{host.exposed_prefill_ns / 1e6:.2f} ms a prompt, prompts × {host.prompt_factor:.3f}")


def errors(cost: CostModel, timed: Sequence[Timed]) -> list[float]:
    """Relative errors of what `cost` says about these times."""
    return [sum(cost.step(step.shape()) for step in case.steps) / case.ns - 1 for case in timed]
