"""Paged blocks: a block table says where a sequence's tokens lie; sequences may share blocks (Kwon et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kvsim_calibration.engine.caches.base import Batch, PerSequence
from kvsim_calibration.engine.caches.store import Format, Rows, Store

Tensor = torch.Tensor


class Paged(PerSequence):
    """`blocks` blocks of `block_size` tokens. `tables`: sequence → its block ids in order, kept by whoever hands out
    blocks (blocks.py); they must have room for a batch before it begins. A block written by one sequence in this very
    step may be read by another."""

    def __init__(
        self, rows: Rows, blocks: int, block_size: int, tables: Mapping[int, list[int]], format: Format = "plain",
        group: int = 32,
    ) -> None:  # fmt: skip
        self.store = Store(rows, (blocks, block_size), format, group)
        self.block_size, self.tables = block_size, tables

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        size, device = self.block_size, self.store.rows.device
        slots: list[int] = []
        self._lengths: list[int] = []
        self._blocks: list[Tensor] = []
        for sequence, count, context in zip(batch.sequences, batch.counts, batch.contexts, strict=True):
            length, table = context + count, self.tables[sequence]
            slots += [table[p // size] * size + p % size for p in range(context, length)]
            self._lengths.append(length)
            self._blocks.append(torch.tensor(table[: -(-length // size)], device=device))
        self._slots = torch.tensor(slots, device=device)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store.write(layer, self._slots, k, v)

    def read(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        return self.store.read(layer, self._blocks[at], self._lengths[at])

    def drop(self, sequence: int) -> None:
        return

    def nbytes(self) -> int:
        return self.store.nbytes
