"""From a policy and the memory there is to the allocator that manages it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvsim.cache.base import Allocator
from kvsim.cache.buddy import Buddy
from kvsim.cache.fit import Fit
from kvsim.cache.hybrid import Hybrid
from kvsim.cache.none import NoCache
from kvsim.cache.oracle import Oracle
from kvsim.cache.paged import Paged
from kvsim.cache.prefix import PrefixPaged
from kvsim.cache.ranked import Future, RankedPrefix
from kvsim.cache.reserve import Reserve
from kvsim.cache.retained import Retained
from kvsim.cache.retention import Full
from kvsim.cache.spec import CacheSpec
from kvsim.cache.tiered import Tiered
from kvsim.errors import InputError
from kvsim.trace.types import Trace


@dataclass(frozen=True, slots=True)
class Pool:
    """The memory an allocator gets, on one GPU."""

    bytes: int
    token_bytes: int
    """of one token over all layers; of one group's layers where `windows` has several"""
    windows: tuple[int, ...]
    """tokens that each group of layers attends (0: all); equal bytes a group"""
    max_model_len: int
    batch_tokens: int
    unusable: int = 0
    """blocks that are never given out"""
    forks: bool = False
    """whether sequences fork (parallel sampling in an engine that can)"""
    activation_bytes: int = 1
    """transient bytes of one token in flight: what bounds a batch without a cache"""


def build_cache(spec: CacheSpec, pool: Pool, trace: Trace) -> Allocator:
    """The allocator for `spec` in `pool`. Only eviction order belady looks at the trace, that is at the future."""
    match spec.layout:
        case "none":
            return NoCache(pool_bytes=pool.bytes, token_bytes=pool.activation_bytes)
        case "paged":
            cache = _paged(spec, pool, trace)
            if not spec.tier.bytes:
                return cache
            if not isinstance(cache, Paged):
                raise InputError("a host tier behind sliding-window layers is not modelled: use tier none")
            return Tiered(cache, spec.tier, swap=spec.on_pressure == "swap")
    token_bytes = pool.token_bytes * len(pool.windows)
    common: Any = {"pool_bytes": pool.bytes, "token_bytes": token_bytes, "max_model_len": pool.max_model_len}
    match spec.layout:
        case "reserve":
            return Reserve(**common)
        case "oracle":
            return Oracle(**common, placement="buddy")
        case "buddy":
            return Buddy(**common)
        case "fit":
            return Fit(**common, growth_tokens=spec.block_size, placement="first")
        case _:
            return Fit(**common, growth_tokens=spec.block_size, placement="best")


def _paged(spec: CacheSpec, pool: Pool, trace: Trace) -> Allocator:
    blocks = pool.bytes // (pool.token_bytes * spec.block_size)
    shape: Any = {"blocks": blocks, "block_size": spec.block_size, "token_bytes": pool.token_bytes}
    prefix = spec.prefix == "hash"
    if blocks <= pool.unusable:
        raise InputError(f"the KV pool of {pool.bytes:,} bytes holds no block of {spec.block_size} tokens")
    if len(pool.windows) > 1 or pool.windows[0]:
        if spec.eviction != "lru":
            raise InputError("with sliding-window layers idle blocks leave in order lru only")
        if not isinstance(spec.retention, Full):
            raise InputError("retention on top of sliding-window layers is not modelled: use retention full")
        return Hybrid(
            **shape, windows=pool.windows, prefix=prefix, unusable=pool.unusable, batch_tokens=pool.batch_tokens,
            max_model_len=pool.max_model_len,
        )
    if not isinstance(spec.retention, Full):
        return Retained(**shape, retention=spec.retention, unusable=pool.unusable)
    if prefix and spec.eviction != "lru":
        future = Future(trace) if spec.eviction == "belady" else None
        return RankedPrefix(**shape, order=spec.eviction, future=future, unusable=pool.unusable)
    if prefix or pool.forks:
        return PrefixPaged(**shape, unusable=pool.unusable, reuse=prefix, forks=pool.forks)
    return Paged(**shape, unusable=pool.unusable)
