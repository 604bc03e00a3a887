"""Attention of prompt chunks: `prefill_attention`, on two rungs."""

from __future__ import annotations

from typing import Literal

import torch

from . import checks, chunks
from .caches import Cache
from .launch import Kernel, capturing

Rung = Literal["flash", "naive"]
WARPS = 4
NAIVE_THREADS = 128


def flash_kernel(dtype: torch.dtype, head_dim: int, tiles: int) -> Kernel:
    """tiles: 16-row tiles of queries a warp, 1 or 2. Shared memory: query rows, two stages of keys and values."""
    keys = 64 if head_dim <= 64 else 32
    rows = flash_rows(tiles) + 2 * 2 * keys
    expression = f"prefill_flash<{checks.CPP_TYPES[dtype]}, {head_dim}, {tiles}>"
    return Kernel("prefill_flash.cu", expression, WARPS * 32, rows * head_dim * 2)


def flash_rows(tiles: int) -> int:
    """Query rows a block: (token, head of the group) pairs."""
    return WARPS * 16 * tiles


def naive_kernels(dtype: torch.dtype, head_dim: int) -> tuple[Kernel, Kernel, Kernel]:
    """Scores, softmax, values."""
    arguments = f"<{checks.CPP_TYPES[dtype]}, {head_dim}>"
    return (
        Kernel("prefill_naive.cu", f"prefill_naive_scores{arguments}", NAIVE_THREADS),
        Kernel("prefill_naive.cu", "prefill_naive_softmax", 32),
        Kernel("prefill_naive.cu", f"prefill_naive_values{arguments}", head_dim),
    )


def prefill_attention(
    q: torch.Tensor,
    cache: Cache,
    lengths: torch.Tensor,
    query_starts: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    scale: float | None = None,
    kernel: Rung = "flash",
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    most_queries: int | None = None,
    check_contents: bool = True,
) -> torch.Tensor:
    """Causal attention of a chunk of each sequence over its cached context and itself.

    For query i of a sequence with n queries and length L, at position p = L - n + i, and query head h of KV head g:
    `out[i, h] = sum over t <= p of softmax_t(scale q[i, h] · keys[t, g]) values[t, g]`.

    q [tokens, query heads, head size], bf16 or fp16 as the cache: the chunks one after the other.
    cache: holds the keys and values of context and chunk (append the chunk first).
    lengths int32 [sequences]: tokens in the cache, chunk included; query_starts int32 [sequences + 1]: sequence b's
    queries are q[query_starts[b]:query_starts[b + 1]]; there may be none. block_table int32 [sequences, blocks a
    sequence], for a PagedCache.
    scale: head size^-1/2 unless given. lse float32 [tokens, query heads]: filled, if given, with the natural
    log-sum-exp of the scaled scores. most_queries: the longest chunk, found (which waits for the device) unless given.
    kernel: `flash` streams tiles; `naive` writes every score to `workspace`, float32 of
    sequences x query heads x most_queries x capacity numbers, allocated unless given.
    check_contents: look into lengths, query_starts and block_table, which waits for the device.
    While a CUDA graph is captured nothing is checked or allocated: out, most_queries and workspace must be given.

    Returns out, shaped as q. Raises ValueError in words before anything is launched.
    """
    asked = chunks.checked(q, cache, lengths, query_starts, block_table, scale, most_queries, check_contents)
    out = result("out", out, list(q.shape), q.dtype, q.device)
    if lse is not None:
        checks.tensor("lse", lse, list(q.shape[:2]), (torch.float32,), q.device)
    where = (block_table, lengths, query_starts, asked.width, asked.shift, asked.group)
    if kernel == "flash":
        rows = asked.most_queries * asked.group
        tiles = 1 if rows <= flash_rows(1) or cache.head_dim > 128 else 2
        flash = flash_kernel(q.dtype, cache.head_dim, tiles)
        grid = (-(-rows // flash_rows(tiles)), cache.kv_heads, asked.sequences)
        flash.launch(grid, out, lse, q, cache.keys, cache.values, *where, asked.scale, device=q.device)
    elif kernel == "naive":
        grid = (asked.most_queries, q.shape[1], asked.sequences)
        shape = [asked.sequences, q.shape[1], asked.most_queries, asked.capacity]
        workspace = result("workspace", workspace, shape, torch.float32, q.device)
        scores, softmax, values = naive_kernels(q.dtype, cache.head_dim)
        scores.launch(grid, workspace, q, cache.keys, *where, asked.capacity, asked.scale, device=q.device)
        softmax.launch(grid, workspace, lse, lengths, query_starts, asked.group, asked.capacity, device=q.device)
        values.launch(grid, out, workspace, cache.values, *where, asked.capacity, device=q.device)
    else:
        raise ValueError(f"kernel is {kernel!r}, not 'flash' or 'naive'")
    return out


def result(
    name: str, given: torch.Tensor | None, shape: list[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The tensor given, checked, or a new one."""
    if given is None:
        if capturing(device):
            raise ValueError(f"{name} must be given while a CUDA graph is captured: {dtype} of shape {shape}")
        return torch.empty(shape, dtype=dtype, device=device)
    checks.tensor(name, given, [*shape], (dtype,), device)
    return given
