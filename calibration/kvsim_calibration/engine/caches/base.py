"""The interface between the model and a KV cache.

A forward computes a `Batch`: for each of its sequences some new tokens behind those computed earlier. The model calls

    cache.begin(batch)                       once, before layer 0
    out = cache.attend(layer, q, k, v)       in every layer: keep k and v of the new tokens, answer their queries
    cache.end()                              once, after the last layer: the time to evict

and the owner of a sequence calls `cache.drop(sequence)` when it is over. A policy is a subclass of `Cache`, or, easier,
of `PerSequence`, which asks for no more than where rows are kept:

    write(layer, k, v)          store the new rows of all sequences of the batch
    read(layer, at) -> (K, V)   all that is kept of its sequence number `at`, oldest first, the new rows last

A policy that drops rows does so in `end`; what it drops is its own business, since the model gives keys that are
rotated for their true positions already, and attention is causal by order in `read`. One that scores rows by the
attention they get overrides `attend_one`, which sees queries and keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch

from kvsim_calibration.engine.ops import attention, causal_mask

Tensor = torch.Tensor


@dataclass(frozen=True)
class Batch:
    """What one forward computes. Sequence i has `contexts[i]` tokens behind it and computes `counts[i]` more; the
    tokens of all lie one after the other, those of sequence i are rows `rows(i)`."""

    sequences: list[int]
    """the owner's numbers for them"""
    counts: list[int]
    contexts: list[int]
    """true positions begin here, whatever the cache has dropped"""
    starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        object.__setattr__(self, "starts", starts)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def tokens(self) -> int:
        """m: rows of the linear layers."""
        return self.starts[-1]

    def rows(self, at: int) -> slice:
        """Where the new tokens of sequence number `at` lie."""
        return slice(self.starts[at], self.starts[at + 1])

    def positions(self, device: torch.device) -> Tensor:
        """True positions int64 [tokens]."""
        if self.tokens == len(self):
            return torch.tensor(self.contexts, device=device)
        parts = [torch.arange(c, c + n, device=device) for c, n in zip(self.contexts, self.counts, strict=True)]
        return torch.cat(parts)

    def last(self) -> list[int]:
        """Row of each sequence's last token."""
        return [start - 1 for start in self.starts[1:]]


class Cache(ABC):
    """What the model needs of a cache."""

    batch: Batch

    def begin(self, batch: Batch) -> None:
        """A forward begins."""
        self.batch = batch

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep k and v [tokens, kv heads, head size] of the batch; attention of q [tokens, heads, head size] over all
        that is kept of each sequence. Keys and queries are rotated. Returns a tensor shaped as q."""

    def end(self) -> None:
        """All layers have run."""
        return

    @abstractmethod
    def drop(self, sequence: int) -> None:
        """`sequence` is over, or starts again: forget it."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the cache has allocated."""


class PerSequence(Cache):
    """A cache that attends sequence by sequence, over what `read` gives."""

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._masks: dict[tuple[int, int], Tensor | None] = {}

    @abstractmethod
    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store k and v [tokens, kv heads, head size] of the batch's new tokens."""

    @abstractmethod
    def read(self, layer: int, at: int) -> tuple[Tensor, Tensor]:
        """Keys and values [kept tokens, kv heads, head size] of sequence number `at`, the new rows last."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.write(layer, k, v)  # of all, before any is read: sequences may share blocks that are new in this step
        return self.attend_kept(layer, q)

    def attend_kept(self, layer: int, q: Tensor) -> Tensor:
        """Attention once the new rows are written: what a calibration times as the attention kernel."""
        rows = [self.batch.rows(at) for at in range(len(self.batch))]
        return torch.cat([self.attend_one(layer, at, q[new], *self.read(layer, at)) for at, new in enumerate(rows)])

    def attend_one(self, layer: int, at: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of one sequence's new queries. The place to look at scores."""
        return attention(q, keys, values, self.mask(len(q), keys))

    def mask(self, queries: int, keys: Tensor) -> Tensor | None:
        """`causal_mask`, made once a forward for each shape: layers share it."""
        shape = (queries, len(keys))
        if shape not in self._masks:
            self._masks[shape] = causal_mask(*shape, keys.dtype, keys.device)
        return self._masks[shape]
