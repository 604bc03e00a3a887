"""No cache, and the plain contiguous one."""

from __future__ import annotations

import torch

from kvsim_calibration.engine.caches.base import Batch, PerSequence, Rows

Tensor = torch.Tensor


class Uncached(PerSequence):
    """Keeps nothing: every forward has to be given whole sequences (contexts 0)."""

    def begin(self, batch: Batch) -> None:
        assert not any(batch.contexts), "without a cache every sequence is computed from its first token on"
        super().begin(batch)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._new = k, v
        return super().attend(layer, q, k, v)

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> None:
        return

    def read(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        rows = self.batch.rows(at)
        return self._new[0][rows], self._new[1][rows]

    def drop(self, sequence: int) -> None:
        return

    def nbytes(self) -> int:
        return 0


class Contiguous(PerSequence):
    """A row of `capacity` tokens for each of up to `sequences` sequences: [sequences, capacity, kv heads, head size] a
    layer. What HF's static cache and FasterTransformer do."""

    def __init__(self, rows: Rows, sequences: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self.keys, self.values = rows.zeros(sequences, capacity)
        self.free = list(range(sequences))[::-1]
        self.slot: dict[int, int] = {}
        """sequence → its row"""
        self.length: dict[int, int] = {}
        """tokens kept of it"""

    def begin(self, batch: Batch) -> None:
        """Raises ValueError where a sequence outgrows its row, or no row is free."""
        super().begin(batch)
        for sequence, count in zip(batch.sequences, batch.counts, strict=True):
            if sequence not in self.slot:
                if not self.free:
                    raise ValueError(f"all {len(self.slot)} rows of the cache are taken")
                self.slot[sequence] = self.free.pop()
                self.length[sequence] = 0
            self.length[sequence] += count
            if self.length[sequence] > self.capacity:
                raise ValueError(f"sequence {sequence} has {self.length[sequence]} tokens, its row {self.capacity}")

    def write(self, layer: int, at: int, k: Tensor, v: Tensor) -> None:
        sequence = self.batch.sequences[at]
        slot, end = self.slot[sequence], self.length[sequence]
        self.keys[layer][slot, end - len(k) : end] = k
        self.values[layer][slot, end - len(k) : end] = v

    def read(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        sequence = self.batch.sequences[at]
        slot, end = self.slot[sequence], self.length[sequence]
        return self.keys[layer][slot, :end], self.values[layer][slot, :end]

    def drop(self, sequence: int) -> None:
        self.free.append(self.slot.pop(sequence))
        del self.length[sequence]

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))
