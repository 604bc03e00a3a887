"""CUDA kernels for attention and the KV cache, on torch tensors: built at run time, also run on the CPU for tests."""

from __future__ import annotations

from .caches import Cache, ContiguousCache, PagedCache
from .decode import decode_attention

__all__ = ["Cache", "ContiguousCache", "PagedCache", "decode_attention"]
