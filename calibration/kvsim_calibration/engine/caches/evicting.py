"""Caches that forget: a budget of tokens for each sequence, enforced after every forward.

What goes is chosen by `kvsim_kernels.reference.select`, the reference of the compaction kernel. Keys keep the rotation
of their true positions.
"""

from __future__ import annotations

import torch
from kvsim_kernels.reference.select import heavy_hitters, window

from kvsim_calibration.engine.caches.contiguous import Contiguous
from kvsim_calibration.engine.caches.store import Format, Rows
from kvsim_calibration.engine.ops import probabilities

Tensor = torch.Tensor


class Window(Contiguous):
    """The first `sinks` and the last `recent` tokens stay (StreamingLLM, Xiao et al. 2023). `chunk`: most tokens of a
    sequence in one forward, which are all there until it ends."""

    def __init__(
        self, rows: Rows, sequences: int, sinks: int, recent: int, chunk: int, format: Format = "plain"
    ) -> None:
        super().__init__(rows, sequences, sinks + recent + chunk, format)
        self.sinks, self.recent = sinks, recent

    def end(self) -> None:
        for sequence in self.batch.sequences:
            stay = window(self.length[sequence], self.sinks, self.recent)
            if len(stay) < self.length[sequence]:
                indices = torch.from_numpy(stay).long().expand(self.store.rows.kv_heads, -1)
                for layer in range(self.store.rows.layers):
                    self.store.keep(layer, self.row[sequence], indices)
                self.length[sequence] = len(stay)


class HeavyHitter(Contiguous):
    """The last `recent` tokens stay, and of the others those that got most attention, `budget` in all: for each layer
    and KV head its own (H2O, Zhang et al. 2023)."""

    def __init__(
        self, rows: Rows, sequences: int, budget: int, recent: int, chunk: int, format: Format = "plain"
    ) -> None:
        super().__init__(rows, sequences, budget + chunk, format)
        self.budget, self.recent = budget, recent
        shape = (rows.layers, sequences, rows.kv_heads, self.capacity)
        self.scores = torch.zeros(shape, device=rows.device)
        """attention that each kept token has received since it came"""

    def attend_one(self, layer: int, at: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        got = probabilities(q, keys).sum(1)
        row = self.row[self.batch.sequences[at]]
        self.scores[layer, row, :, : len(keys)] += got.unflatten(0, (keys.shape[1], -1)).sum(1)
        return super().attend_one(layer, at, q, keys, values)

    def end(self) -> None:
        for sequence in self.batch.sequences:
            length, row = self.length[sequence], self.row[sequence]
            if length <= self.budget:
                continue
            for layer in range(self.store.rows.layers):
                scores = self.scores[layer, row]
                chosen = heavy_hitters(scores[:, :length].cpu().numpy(), self.budget, self.recent)
                stay = torch.from_numpy(chosen).long().to(scores.device)
                self.store.keep(layer, row, stay)
                kept = scores.gather(1, stay)
                scores.zero_()
                scores[:, : self.budget] = kept
            self.length[sequence] = self.budget

    def drop(self, sequence: int) -> None:
        self.scores[:, self.row[sequence]] = 0
        super().drop(sequence)
