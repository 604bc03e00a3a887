"""What is timed: a list of points, most wanted first, each with the ceiling that it is held against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

Launch = Callable[[], None]
Ceiling = Literal["read", "copy", "gemm", "link", "launch"]


@dataclass(frozen=True)
class Subject:
    """One set of buffers. `launch` works on it; `error` compares a part of what it left with float64.

    rivals: by name, functions that make a launch of someone else's kernel for the same work on the same buffers.
    """

    launch: Launch
    error: Callable[[], float]
    rivals: dict[str, Callable[[], Launch]] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """One row of the results.

    bytes: that a launch must read and write; flops: that it must compute (0: not the limit); footprint: of one set of
    buffers, which decides how many take turns. make(device, seed) gives a set.
    """

    kernel: str
    case: str
    ceiling: Ceiling | None
    bound: float
    bytes: int
    flops: int
    footprint: int
    make: Callable[[torch.device, int], Subject]


def void(_: object) -> None:
    """Drop what a launch returns."""


def points(tiny: bool = False) -> Iterator[Point]:
    """Every point; `tiny` ones do the same on sizes that the CPU runner can take, for tests."""
    from . import attention, cacheops, limits

    yield from limits.points(tiny)
    yield from attention.decode_points(tiny)
    yield from attention.prefill_points(tiny)
    yield from cacheops.points(tiny)
