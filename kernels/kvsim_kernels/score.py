"""Attention that each cached token receives, which heavy-hitter eviction needs: `kv_score`."""

from __future__ import annotations

import torch

from . import checks, chunks
from .caches import Cache
from .launch import Kernel

WARPS = 4
KEYS = WARPS * 16  # a block
QUERIES = 32  # query rows a step


def kernel(dtype: torch.dtype, head_dim: int) -> Kernel:
    expression = f"kv_score<{checks.CPP_TYPES[dtype]}, {head_dim}>"
    return Kernel("score.cu", expression, WARPS * 32, (KEYS + QUERIES) * head_dim * 2)


def kv_score(
    q: torch.Tensor,
    lse: torch.Tensor,
    cache: Cache,
    lengths: torch.Tensor,
    query_starts: torch.Tensor,
    scores: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    scale: float | None = None,
    check_contents: bool = True,
) -> None:
    """Add to `scores` the attention that each cached token receives from these queries (H2O, arXiv:2306.14048).

    `scores[b, g, t] += sum over i, h of exp(scale q[i, h] · keys[t, g] - lse[i, h])`, for the queries i that see t and
    the heads h of KV head g: exactly the probabilities of attention, because lse is its final normaliser. A second
    pass, over keys only; each score has one writer, so the result is the same every time.

    q, cache, lengths, query_starts, block_table, scale, check_contents: as in `prefill_attention`. lse: what that left,
    or `decode_attention` with one query a sequence. scores float32 [sequences, kv heads, capacity], where capacity is
    the cache's, or blocks a sequence * block size.
    Raises ValueError in words before anything is launched. Can be captured in a CUDA graph.
    """
    asked = chunks.checked(q, cache, lengths, query_starts, block_table, scale, len(q), check_contents)
    checks.tensor("lse", lse, list(q.shape[:2]), (torch.float32,), q.device)
    checks.tensor("scores", scores, [asked.sequences, cache.kv_heads, asked.capacity], (torch.float32,), q.device)
    grid = (-(-asked.capacity // KEYS), cache.kv_heads, asked.sequences)
    where = (block_table, lengths, query_starts, asked.width, asked.shift, asked.group)
    score = kernel(q.dtype, cache.head_dim)
    score.launch(grid, scores, q, lse, cache.keys, *where, asked.capacity, asked.scale, device=q.device)
