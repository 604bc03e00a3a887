"""The grids of `python -m kvsim_kernels check` and `resources`: one module a kernel family, found by being here.

Each module offers
* `variants() -> Iterable[Kernel]`: every instantiation that the Python functions can launch, as launched;
* `cases(device, wide) -> Iterable[Case]`: what is compared against float64; `wide` adds the slow ones.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..launch import Kernel

GROUPS = (*range(1, 17), 64)
"""query heads a KV head, of the wide grids"""


@dataclass(frozen=True)
class Case:
    """One comparison. run() gives the error, which must not exceed `bound`."""

    kernel: str
    case: str
    bound: float
    run: Callable[[], float]


class Family(Protocol):
    def variants(self) -> Iterable[Kernel]: ...

    def cases(self, device: torch.device, wide: bool) -> Iterable[Case]: ...


def families() -> dict[str, Family]:
    """The modules of this package by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: cast(Family, importlib.import_module(f"{__name__}.{name}")) for name in names}


def variants() -> Iterator[Kernel]:
    for family in families().values():
        yield from family.variants()


def cases(device: torch.device, wide: bool = False) -> Iterator[Case]:
    for family in families().values():
        yield from family.cases(device, wide)


def relative_error(got: ArrayLike | torch.Tensor, want: ArrayLike) -> float:
    """|got - want| / |want| in Frobenius norm; infinite where one is NaN and the other is not."""
    if isinstance(got, torch.Tensor):
        got = got.detach().to("cpu", torch.float64).numpy()
    have, true = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if have.shape != true.shape or not np.array_equal(np.isnan(have), np.isnan(true)):
        return float("inf")
    difference = np.nan_to_num(have - true, nan=0.0)
    norm = float(np.linalg.norm(np.nan_to_num(true, nan=0.0)))
    return float(np.linalg.norm(difference)) / (norm or 1.0)
