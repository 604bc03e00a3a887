"""What a replica asks of others: the time of a step, and where requests come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from kvsim.cache.base import Sequence
from kvsim.cost.shape import StepShape

Int = NDArray[np.int64]


class StepCost(Protocol):
    """What the engine asks of a cost model (kvsim.cost)."""

    def step(self, shape: StepShape) -> int:
        """ns of one step."""
        ...

    def decode_run(self, shape: StepShape, k: int) -> Int:
        """ns of each of k consecutive decode steps that begin with `shape`: what is scored grows with what the first
        group attends, and what is moved is moved in the first."""
        ...

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        """The same as a list, for a few steps."""
        ...


class Source(Protocol):
    """Where a replica's requests come from."""

    surprises: bool
    """whether something may arrive that `next_ns` did not tell of; the replica's `wake` is called then"""

    @property
    def next_ns(self) -> int:
        """Time of the next arrival that is known of now, or NEVER."""
        ...

    def take(self, now: int) -> Iterable[Sequence]:
        """Those that have arrived by `now`."""
        ...

    def ended(self, seq: Sequence, now: int) -> None: ...

    def refused(self, seq: Sequence, reason: str) -> None: ...

    forks: bool
    """whether further answers to a prompt are forked off when it has been computed"""

    def forked(self, seq: Sequence) -> list[Sequence]:
        """Further answers to the prompt of `seq`, which has just been computed."""
        ...

    def wait(self) -> simpy.Event | None:
        """An event of an arrival that is not known of yet; None: there will be no more."""
        ...
