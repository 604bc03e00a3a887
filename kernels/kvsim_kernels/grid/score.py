"""Attention received by each cached token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ..caches import HEAD_SIZES
from ..checks import FLOATS
from ..launch import Kernel
from ..prefill import prefill_attention
from ..reference.score import kv_score as reference
from ..sample import batch
from ..score import kernel, kv_score
from . import Case, relative_error
from .prefill import combined


def variants() -> Iterator[Kernel]:
    for dtype in FLOATS:
        yield from (kernel(dtype, head_dim) for head_dim in HEAD_SIZES)


def error(
    queries: list[int], lengths: list[int], kv_heads: int, group: int, head_dim: int,
    dtype: torch.dtype, block_size: int, device: torch.device,
) -> float:  # fmt: skip
    """Scores start at 1, to see that they are added to."""
    x = batch(queries, lengths, kv_heads, group, head_dim, dtype, block_size, device)
    lse = torch.empty(x.q.shape[:2], device=device)
    prefill_attention(x.q, x.cache, x.lengths, x.query_starts, block_table=x.block_table, lse=lse)
    scores = torch.ones(len(lengths), kv_heads, x.keys.shape[1], device=device)
    kv_score(x.q, lse, x.cache, x.lengths, x.query_starts, scores, block_table=x.block_table)
    want = reference(x.q.double().cpu(), x.keys, x.query_starts.tolist(), lengths, head_dim**-0.5)
    return relative_error(scores - 1, want)


def cases(device: torch.device, wide: bool) -> Iterator[Case]:
    bf16, fp16 = FLOATS
    chosen: list[tuple[list[int], list[int], int, int, int, torch.dtype, int]] = [
        ([1, 1, 0, 1], [130, 1, 0, 64], 2, 4, 128, bf16, 16),
        ([40, 1, 0, 7], [40, 33, 5, 70], 2, 3, 64, fp16, 0),
    ]
    if wide:
        for head_dim in HEAD_SIZES:
            chosen += [
                ([9, 1, 33], [9, 17, 100], 2, group, head_dim, dtype, 8) for group, dtype in ((1, fp16), (16, bf16))
            ]
            chosen.append(([2], [65], 1, 64, head_dim, bf16, 0))
        chosen += combined()
    for case in chosen:
        queries, lengths, kv_heads, group, head_dim, dtype, block_size = case
        layout = f"blocks of {block_size}" if block_size else "contiguous"
        name = f"{str(dtype)[6:]} heads {kv_heads}x{group} of {head_dim}, {queries} queries at {lengths}, {layout}"
        yield Case("kv_score", name, 1e-4, partial(error, *case, device))
