"""Prefill attention: head sizes, groups, layouts, context before the chunk, unequal lengths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product

import torch

from ..caches import BLOCK_SIZES, HEAD_SIZES
from ..checks import FLOATS
from ..launch import Kernel
from ..prefill import Rung, flash_kernel, naive_kernels, prefill_attention
from ..reference import prefill as reference
from ..sample import batch
from ..uncached import uncached_decode_attention
from . import GROUPS, Case, relative_error

Chunks = tuple[list[int], list[int], int, int, int, torch.dtype, int]
"""queries, lengths, KV heads, group, head size, dtype, block size (0: contiguous)"""

BOUND = {torch.bfloat16: 5e-3, torch.float16: 1e-3}


def variants() -> Iterator[Kernel]:
    for dtype in FLOATS:
        for head_dim in HEAD_SIZES:
            yield from (flash_kernel(dtype, head_dim, tiles) for tiles in ((1, 2) if head_dim <= 128 else (1,)))
            yield from naive_kernels(dtype, head_dim)[:: 1 if (dtype, head_dim) == (FLOATS[0], HEAD_SIZES[0]) else 2]


def error(
    kernel: Rung, queries: list[int], lengths: list[int], kv_heads: int, group: int, head_dim: int,
    dtype: torch.dtype, block_size: int, device: torch.device,
) -> float:  # fmt: skip
    """The largest relative error of a sequence's outputs or log-sum-exps."""
    x = batch(queries, lengths, kv_heads, group, head_dim, dtype, block_size, device)
    lse = torch.full(x.q.shape[:2], torch.nan, device=device)
    out = prefill_attention(x.q, x.cache, x.lengths, x.query_starts, block_table=x.block_table, kernel=kernel, lse=lse)
    starts, scale = x.query_starts.tolist(), head_dim**-0.5
    want, normaliser = reference.prefill_attention(x.q.double().cpu(), x.keys, x.values, starts, lengths, scale)
    chunks = [slice(a, b) for a, b in pairwise(starts) if a < b]
    return max(relative_error(got[c], true[c]) for got, true in ((out, want), (lse, normaliser)) for c in chunks)


def uncached_error(lengths: list[int], kv_heads: int, group: int, head_dim: int, device: torch.device) -> float:
    random = torch.Generator().manual_seed(0)
    sequences, width, dtype = len(lengths), 96, torch.bfloat16
    q = torch.randn(sequences, kv_heads * group, head_dim, generator=random).to(dtype)
    hidden = torch.randn(sequences, max(lengths), width, generator=random).to(dtype)
    weights = (torch.randn(2, kv_heads, head_dim, width, generator=random) * width**-0.5).to(dtype)
    k, v = (torch.einsum("bsw,hdw->bshd", hidden.float(), weight.float()).to(dtype).double() for weight in weights)
    want, _ = reference.prefill_attention(q.double(), k, v, list(range(sequences + 1)), lengths, head_dim**-0.5)
    given = (tensor.to(device) for tensor in (q, hidden, *weights, torch.tensor(lengths, dtype=torch.int32)))
    return relative_error(uncached_decode_attention(*given), want)


def combined() -> list[Chunks]:
    """Every head size with every layout, while dtype, group size and KV heads take turns."""
    found: list[Chunks] = []
    for turn, (head_dim, block_size) in enumerate(product(HEAD_SIZES, (0, *BLOCK_SIZES))):
        page = block_size or 16
        queries, lengths = [1, 0, page - 1, 3, page, 0], [page + 1, 0, page - 1, page, 2 * page + 5, 1]
        group, dtype = GROUPS[turn % 17], FLOATS[(turn + turn // 6) % 2]
        queries = [min(n, 40) for n in queries]
        found.append((queries, lengths, 1 + turn % 3, group, head_dim, dtype, block_size))
    return found


def cases(device: torch.device, wide: bool) -> Iterator[Case]:
    bf16, fp16 = FLOATS
    flash: list[Chunks] = [
        ([70, 1, 0, 5, 0], [70, 33, 0, 100, 9], 2, 4, 64, bf16, 0),
        ([70, 1, 0, 5], [70, 33, 0, 130], 2, 1, 128, fp16, 16),
        ([7, 8, 9, 1], [7, 8, 17, 1], 1, 7, 96, bf16, 8),
        ([10], [170], 1, 16, 256, bf16, 32),
        ([1, 2], [65, 2], 1, 64, 128, bf16, 128),
        ([16, 3], [16, 64], 3, 2, 64, fp16, 64),
    ]
    naive: list[Chunks] = [
        ([20, 1, 0], [33, 1, 9], 2, 2, 64, bf16, 0),
        ([9, 2], [9, 60], 2, 1, 128, fp16, 16),
    ]
    if wide:
        shapes = [(head_dim, dtype) for head_dim in HEAD_SIZES for dtype in FLOATS]
        for i, (head_dim, dtype) in enumerate(shapes):
            block_size = (0, *BLOCK_SIZES)[i % 6]
            page = block_size or 16
            lengths = [1, page - 1, page, page + 1, 3 * page + 5, 0]
            flash += [
                ([1, *(min(n, 20) for n in lengths[1:])], lengths, 2, group, head_dim, dtype, block_size)
                for group in (1, 3, 8)
            ]
            naive.append(flash[-2])
        flash += [([5, 1], [9, 33], 1, group, 64, bf16, 8) for group in GROUPS]
        chunks = combined()
        flash += chunks
        naive += chunks[::5]
    rungs: list[tuple[Rung, list[Chunks]]] = [("flash", flash), ("naive", naive)]
    for kernel, chosen in rungs:
        for case in chosen:
            queries, lengths, kv_heads, group, head_dim, dtype, block_size = case
            layout = f"blocks of {block_size}" if block_size else "contiguous"
            name = f"{str(dtype)[6:]} heads {kv_heads}x{group} of {head_dim}, {queries} queries at {lengths}, {layout}"
            yield Case(f"prefill_{kernel}", name, BOUND[dtype], partial(error, kernel, *case, device))
    yield Case(
        "uncached_decode",
        "bfloat16 heads 2x3 of 64 at [40, 1, 17]",
        5e-3,
        partial(uncached_error, [40, 1, 17], 2, 3, 64, device),
    )
