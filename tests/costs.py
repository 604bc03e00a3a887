"""Step costs for tests that are not about cost."""

from __future__ import annotations

import numpy as np

from kvsim.cost.shape import StepShape


class Constant:
    """Every step takes a millisecond."""

    def step(self, shape: StepShape) -> int:
        return 1_000_000

    def decode_run(self, shape: StepShape, k: int) -> np.ndarray:
        return np.full(k, 1_000_000, np.int64)

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        return [1_000_000] * k
