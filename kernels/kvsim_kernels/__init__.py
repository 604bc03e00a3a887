"""CUDA kernels for attention and the KV cache, on torch tensors: built at run time, also run on the CPU for tests."""

from __future__ import annotations

from .append import kv_append, slots_of
from .caches import Cache, ContiguousCache, PagedCache
from .compact import kv_compact, release_blocks, spare_blocks
from .copy import kv_copy
from .decode import decode_attention
from .prefill import prefill_attention
from .score import kv_score
from .uncached import UncachedWorkspace, uncached_decode_attention

__all__ = [
    "Cache",
    "ContiguousCache",
    "PagedCache",
    "UncachedWorkspace",
    "decode_attention",
    "kv_append",
    "kv_compact",
    "kv_copy",
    "kv_score",
    "prefill_attention",
    "release_blocks",
    "slots_of",
    "spare_blocks",
    "uncached_decode_attention",
]
