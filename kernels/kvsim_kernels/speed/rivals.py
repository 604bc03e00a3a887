"""Other people's kernels for the same work on the same buffers, where installed: torch, FlashInfer, flash-attn."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as cache_once
from importlib import import_module
from importlib.util import find_spec

import torch

from ..caches import Cache, ContiguousCache, PagedCache
from .points import Launch, void

Rivals = dict[str, Callable[[], Launch]]


def decode(q: torch.Tensor, cache: Cache, lengths: torch.Tensor, table: torch.Tensor | None) -> Rivals:
    """Of equally long sequences that fill their caches."""
    if cache.keys.dtype != q.dtype:
        return {}
    found: Rivals = {}
    if isinstance(cache, ContiguousCache):
        found["torch sdpa"] = lambda: sdpa(q[:, :, None], cache, causal=False)
    if find_spec("flash_attn"):
        found["flash-attn"] = lambda: flash_attn_decode(q, cache, lengths, table)
    if find_spec("flashinfer") and isinstance(cache, PagedCache) and table is not None:
        found["flashinfer"] = lambda: flashinfer_decode(q, cache, lengths, table)
    return found


def prefill(q: torch.Tensor, cache: Cache, queries: int) -> Rivals:
    """Of equally long sequences, all of whose tokens are new, in a contiguous cache that they fill."""
    if cache.keys.shape[1] != queries:
        return {}
    batched = q.view(-1, queries, *q.shape[1:])
    found: Rivals = {"torch sdpa": lambda: sdpa(batched.transpose(1, 2), cache, causal=True)}
    if find_spec("flash_attn"):
        found["flash-attn"] = lambda: flash_attn_prefill(batched, cache)
    if find_spec("flashinfer") and len(batched) == 1:
        found["flashinfer"] = lambda: flashinfer_prefill(q, cache)
    return found


def sdpa(q: torch.Tensor, cache: Cache, causal: bool) -> Launch:
    keys, values = cache.keys.transpose(1, 2), cache.values.transpose(1, 2)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: void(attend(q, keys, values, is_causal=causal, enable_gqa=True))


def flash_attn_decode(q: torch.Tensor, cache: Cache, lengths: torch.Tensor, table: torch.Tensor | None) -> Launch:
    attend = import_module("flash_attn").flash_attn_with_kvcache
    one = q[:, None]
    return lambda: void(attend(one, cache.keys, cache.values, cache_seqlens=lengths, block_table=table))


def flash_attn_prefill(q: torch.Tensor, cache: Cache) -> Launch:
    attend = import_module("flash_attn").flash_attn_func
    return lambda: void(attend(q, cache.keys, cache.values, causal=True))


@cache_once
def flashinfer_workspace(device: torch.device) -> torch.Tensor:
    """One for all, since they run one after the other."""
    return torch.empty(256 << 20, dtype=torch.uint8, device=device)


def flashinfer_decode(q: torch.Tensor, cache: PagedCache, lengths: torch.Tensor, table: torch.Tensor) -> Launch:
    wrapper = import_module("flashinfer").BatchDecodeWithPagedKVCacheWrapper(flashinfer_workspace(q.device), "NHD")
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device) * table.shape[1]
    last = (lengths - 1) % cache.block_size + 1
    heads = (q.shape[1], cache.kv_heads, cache.head_dim, cache.block_size)
    wrapper.plan(starts, table.flatten(), last, *heads, q_data_type=q.dtype, kv_data_type=q.dtype)
    return lambda: void(wrapper.run(q, (cache.keys, cache.values)))


def flashinfer_prefill(q: torch.Tensor, cache: Cache) -> Launch:
    attend = import_module("flashinfer").single_prefill_with_kv_cache
    return lambda: void(attend(q, cache.keys[0], cache.values[0], causal=True))
