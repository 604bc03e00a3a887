"""Engines that run here and now, whose measured times are the truth of `validate step` and `validate serving`.

A satellite adds one by the entry-point group `kvsim.truth` ("name = module:object"); kvsim imports none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import InputError
from kvsim.registry import Registry
from kvsim.validate.report import Report


@dataclass(frozen=True, slots=True)
class Asked:
    """What is run, and what it is predicted from."""

    device: str
    """torch's name of it: cpu, cuda:0"""
    profile: Path | None
    """the device's profile; None: it is calibrated first"""
    model: str
    seconds: float
    """to measure for (and to calibrate for, where that is needed)"""
    threads: int | None = None
    """of the CPU; None: one a core"""
    out: Path | None = None
    """folder for the Results of a served trace: `predicted-1`, `measured-1` …"""


class Truth(Protocol):
    """An engine. Both raise InputError where the device or the model cannot be run."""

    def step(self, asked: Asked, progress: Callable[[float, float], None]) -> Report:
        """Whole steps of given batches, predicted and timed."""
        ...

    def serving(self, asked: Asked, progress: Callable[[float, float], None]) -> Report:
        """A trace, first predicted, then served."""
        ...


TRUTHS: Registry[Any] = Registry("truth")
"""name → Truth"""


def reference() -> Truth:
    """The reference engine of `kvsim[calibrate]`. Raises InputError where it is not installed."""
    try:
        truth: Truth = TRUTHS.get("reference")
    except ModuleNotFoundError as error:
        raise InputError(f"the reference engine needs {error.name}: pip install 'kvsim[calibrate]'") from None
    return truth
