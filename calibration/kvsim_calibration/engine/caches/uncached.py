"""No cache: what `calibrate` measures cached generation against, and the truth that caches are held to."""

from __future__ import annotations

import torch

from kvsim_calibration.engine.caches.base import Batch, PerSequence

Tensor = torch.Tensor


class Uncached(PerSequence):
    """Keeps nothing: every forward has to be given whole sequences (contexts 0)."""

    def begin(self, batch: Batch) -> None:
        assert not any(batch.contexts), "without a cache every sequence is computed from its first token on"
        super().begin(batch)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._new = k, v

    def read(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        rows = self.batch.rows(at)
        return self._new[0][rows], self._new[1][rows]

    def drop(self, sequence: int) -> None:
        return

    def nbytes(self) -> int:
        return 0
