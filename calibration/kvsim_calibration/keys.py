"""Which measured kernels a shipped profile keeps: those that models of the catalogue run, at any usual TP degree."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import polars as pl

from kvsim.cost.kernels import geometry
from kvsim.device import AttentionKey, MoeKey
from kvsim.errors import InputError
from kvsim.model import load_model, model_names

TP = (1, 2, 4, 8)
SMALL = 512
"""N or K under which no layer of weight lies (routers and shards of tiny models interpolate)"""
BETWEEN = (768, 1536, 2560, 3584, 51200)
"""sizes of a measured grid that lie between two others: they serve as held-out keys instead of filling the file"""


COMMON, RARE = 4, 2
"""pairs of model and TP degree that earn an attention kernel its own table: a common one (head size 128, no window, or
an fp8 cache), whose neighbours interpolate as well as its own table (H100: 1.9 % against 1.8 %), and a rarer one"""
GRID = 100
"""shapes from which on a table is a grid over N and K"""


@lru_cache(maxsize=1)
def _catalogue() -> tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]:
    """How many pairs of model and TP degree run each (heads, kv_heads, head_dim, window) and (hidden, inter, experts,
    top_k)."""
    attention: Counter[tuple[int, ...]] = Counter()
    experts: Counter[tuple[int, ...]] = Counter()
    for name in model_names():
        for tp in TP:
            try:
                kernels = geometry(load_model(name), tp=tp)
            except InputError:  # its heads don't split that way
                continue
            attention.update({(key.heads, key.kv_heads, key.head_dim, key.window)
                              for group in kernels.attention for key in (group.decode, group.prefill)})
            experts.update({(e.key.hidden, e.key.inter, e.key.experts, e.key.top_k) for e in kernels.experts})
    return attention, experts


def is_served(key: AttentionKey | MoeKey) -> bool:
    """Whether enough models of the catalogue run this kernel."""
    if isinstance(key, MoeKey):
        return (key.hidden, key.inter, key.experts, key.top_k) in _catalogue()[1]
    common = (key.head_dim == 128 and not key.window) or key.kv_dtype != "bf16"
    return _catalogue()[0][key.heads, key.kv_heads, key.head_dim, key.window] >= (COMMON if common else RARE)


def served_shapes(frame: pl.DataFrame) -> set[tuple[int, int]] | None:
    """(N, K) to keep of a measured grid; None (all) where the rows are the layers of a few models."""
    shapes = set(frame.select("n", "k").unique().iter_rows())
    if len(shapes) < GRID:
        return None
    return {(n, k) for n, k in shapes if min(n, k) >= SMALL and n not in BETWEEN and k not in BETWEEN}
