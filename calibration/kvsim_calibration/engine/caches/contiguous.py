"""Contiguous rows: room for the longest sequence, up front (FasterTransformer, Hugging Face's static cache)."""

from __future__ import annotations

import torch

from kvsim_calibration.engine.caches.base import Batch, PerSequence
from kvsim_calibration.engine.caches.store import Format, Rows, Store

Tensor = torch.Tensor


class Contiguous(PerSequence):
    """A row of `capacity` tokens for each of up to `sequences` sequences."""

    def __init__(self, rows: Rows, sequences: int, capacity: int, format: Format = "plain", group: int = 32) -> None:
        self.store = Store(rows, (sequences, capacity), format, group)
        self.capacity = capacity
        self.free = list(range(sequences))[::-1]
        self.row: dict[int, int] = {}
        """sequence → its row"""
        self.length: dict[int, int] = {}
        """tokens kept of it"""

    def begin(self, batch: Batch) -> None:
        """Raises ValueError where a sequence outgrows its row, or no row is free."""
        super().begin(batch)
        slots = []
        for sequence, count in zip(batch.sequences, batch.counts, strict=True):
            if sequence not in self.row:
                if not self.free:
                    raise ValueError(f"all {len(self.row)} rows of the cache are taken")
                self.row[sequence], self.length[sequence] = self.free.pop(), 0
            first = self.row[sequence] * self.capacity + self.length[sequence]
            slots.append(range(first, first + count))
            self.length[sequence] += count
            if self.length[sequence] > self.capacity:
                raise ValueError(f"sequence {sequence} has {self.length[sequence]} tokens, its row {self.capacity}")
        self.slots = torch.tensor([slot for each in slots for slot in each], device=self.store.rows.device)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store.write(layer, self.slots, k, v)

    def read(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        sequence = self.batch.sequences[at]
        return self.store.read(layer, self.row[sequence], self.length[sequence])

    def drop(self, sequence: int) -> None:
        self.free.append(self.row.pop(sequence))
        del self.length[sequence]

    def nbytes(self) -> int:
        return self.store.nbytes
