"""Decoding without a cache: the keys and values of the whole prefix are computed again for every token."""

from __future__ import annotations

import torch

from . import checks
from .caches import ContiguousCache
from .prefill import prefill_attention


def uncached_decode_attention(
    q: torch.Tensor,
    hidden: torch.Tensor,
    key_weight: torch.Tensor,
    value_weight: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float | None = None,
    out: torch.Tensor | None = None,
    check_contents: bool = True,
) -> torch.Tensor:
    """Attention of each sequence's last token over keys = hidden key_weight^T and values = hidden value_weight^T.

    The naive rung of decode attention: two GEMMs over the prefix, then `prefill_attention` with one query a sequence.
    (Positions are not encoded; a model would rotate the keys between.)

    q [sequences, query heads, head size], hidden [sequences, capacity, model width], key_weight and value_weight
    [kv heads, head size, model width], all of one dtype, bf16 or fp16; lengths int32 [sequences], none of them 0.
    Returns out, shaped as q; give it while a CUDA graph is captured (keys and values then live in the graph's pool).
    """
    checks.tensor("q", q, [None, None, None], checks.FLOATS, q.device)
    sequences, _, head_dim = q.shape
    checks.tensor("hidden", hidden, [sequences, None, None], (q.dtype,), q.device)
    checks.tensor("key_weight", key_weight, [None, head_dim, hidden.shape[2]], (q.dtype,), q.device)
    checks.tensor("value_weight", value_weight, list(key_weight.shape), (q.dtype,), q.device)
    shape = *hidden.shape[:2], len(key_weight), head_dim
    keys, values = ((hidden @ weight.flatten(0, 1).T).view(shape) for weight in (key_weight, value_weight))
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=q.device)
    return prefill_attention(
        q,
        ContiguousCache(keys, values),
        lengths,
        starts,
        scale=scale,
        out=out,
        most_queries=1,
        check_contents=check_contents,
    )
