"""Decoding without a cache: the keys and values of the whole prefix are computed again for every token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import checks
from .caches import ContiguousCache
from .launch import capturing
from .prefill import prefill_attention


@dataclass(frozen=True)
class UncachedWorkspace:
    """Where the keys and values of all prefixes are computed into."""

    keys: torch.Tensor
    """[sequences, capacity, kv heads, head size]"""
    values: torch.Tensor
    starts: torch.Tensor
    """0 … sequences"""

    @classmethod
    def of(cls, hidden: torch.Tensor, key_weight: torch.Tensor) -> UncachedWorkspace:
        """For `uncached_decode_attention` with these."""
        shape = *hidden.shape[:2], *key_weight.shape[:2]
        keys, values = (torch.empty(shape, dtype=hidden.dtype, device=hidden.device) for _ in range(2))
        return cls(keys, values, torch.arange(len(hidden) + 1, dtype=torch.int32, device=hidden.device))


def uncached_decode_attention(
    q: torch.Tensor,
    hidden: torch.Tensor,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    workspace: UncachedWorkspace | None = None,
    check_contents: bool = True,
) -> torch.Tensor:
    """Attention of each sequence's last token over keys = hidden key_weight^T and values = hidden value_weight^T.

    The naive rung of decode attention: two GEMMs over the prefix, then `prefill_attention` with one query a sequence.
    (Positions are not encoded; a model would rotate the keys between.)

    q [sequences, query heads, head size], hidden [sequences, capacity, model width], key_weight and value_weight
    [kv heads, head size, model width], all of one dtype, bf16 or fp16; lengths int32 [sequences], none of them 0.
    Returns out, shaped as q. While a CUDA graph is captured, give `out` and `workspace`: nothing is allocated then.
    """
    checks.tensor("q", q, [None, None, None], checks.FLOATS, q.device)
    sequences, _, head_dim = q.shape
    checks.tensor("hidden", hidden, [sequences, None, None], (q.dtype,), q.device)
    checks.tensor("key_weight", key_weight, [None, head_dim, hidden.shape[2]], (q.dtype,), q.device)
    checks.tensor("value_weight", value_weight, list(key_weight.shape), (q.dtype,), q.device)
    if workspace is None:
        if capturing(q.device):
            raise ValueError("give `out` and `workspace` while a CUDA graph is captured: nothing is allocated then")
        workspace = UncachedWorkspace.of(hidden, key_weight)
    shape = [*hidden.shape[:2], *key_weight.shape[:2]]
    for name, rows, weight in (("keys", workspace.keys, key_weight), ("values", workspace.values, value_weight)):
        checks.tensor(f"workspace.{name}", rows, shape, (q.dtype,), q.device)
        torch.mm(hidden.flatten(0, 1), weight.flatten(0, 1).T, out=rows.view(-1, weight.shape[0] * head_dim))
    checks.tensor("workspace.starts", workspace.starts, [sequences + 1], (torch.int32,), q.device)
    return prefill_attention(
        q,
        ContiguousCache(workspace.keys, workspace.values),
        lengths,
        workspace.starts,
        scale=scale,
        out=out,
        most_queries=1,
        check_contents=check_contents,
    )
