"""Paged blocks under kvsim's own CUDA kernels: what the engine serves with on a GPU.

The tensors are those of `Paged`; appending and attention are one launch each for the whole batch.
"""

from __future__ import annotations

import torch
from kvsim_kernels import PagedCache, decode_attention, kv_append, prefill_attention

from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.caches.paged import Paged

Tensor = torch.Tensor


class KernelPaged(Paged):
    """bf16 or fp16, plain or quantized. A step with prompt chunks over a quantized cache reads it by torch, since the
    prefill kernel reads plain caches only."""

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        device, store = self.store.rows.device, self.store
        width = max(map(len, self._blocks))
        padded = [torch.nn.functional.pad(blocks, (0, width - len(blocks))) for blocks in self._blocks]
        self._table = torch.stack(padded).int()
        self._counted = torch.tensor(self._lengths, dtype=torch.int32, device=device)
        self._starts = torch.tensor(batch.starts, dtype=torch.int32, device=device)
        scales = store.scales or [None] * store.rows.layers
        self._layers = [PagedCache(*each) for each in zip(store.keys, store.values, scales, strict=True)]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        kv_append(k.contiguous(), v.contiguous(), self._layers[layer], self._slots, check_contents=False)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        where, batch = self._layers[layer], self.batch
        if batch.tokens == len(batch):
            self.write(layer, k, v)
            return decode_attention(q.contiguous(), where, self._counted, block_table=self._table,
                                    longest=max(self._lengths), check_contents=False)  # fmt: skip
        if self.store.scales is not None:
            return super().attend(layer, q, k, v)
        self.write(layer, k, v)
        return prefill_attention(q.contiguous(), where, self._counted, self._starts, block_table=self._table,
                                 most_queries=max(batch.counts), check_contents=False)  # fmt: skip
