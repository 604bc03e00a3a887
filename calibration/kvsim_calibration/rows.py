"""Measured rows in one shape, whoever measured them. Times are float ns, sizes bytes, lengths tokens, heads per GPU.

| family | columns beside `ns` |
|---|---|
| decode | KEY, n (sequences), length (tokens in the cache of each), attended (those inside the window) |
| prefill | KEY, chunks (equal ones), tokens (of a chunk), context (cached before it) |
| mixed | KEY, tokens, context (of the one chunk), n, attended |
| skew | KEY, tokens, context, n, mean, longest, ns_mean, ns_longest (the batch with all at the mean, the longest) |
| linear | dtype, n, k, m; maybe warm (bool: the weights came from L2, a time that no engine sees) |
| moe | hidden, inter, experts, top_k, dtype, m |
| memory | op, dtype, bytes |
| collective | gpus, bytes |
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

KEY = ("heads", "kv_heads", "head_dim", "kv_dtype", "window", "block_size")
"""columns of an attention kernel's key"""

KEYS: dict[str, tuple[str, ...]] = {
    "decode": KEY, "prefill": KEY, "mixed": KEY, "skew": KEY, "linear": ("dtype", "n", "k"),
    "moe": ("hidden", "inter", "experts", "top_k", "dtype"), "memory": ("op", "dtype"), "collective": ("gpus",),
}
"""what makes a row's kernel another kernel"""
POINTS: dict[str, tuple[str, ...]] = {
    "decode": ("n", "length", "attended"), "prefill": ("chunks", "tokens", "context"),
    "mixed": ("tokens", "context", "n", "attended"), "skew": ("tokens", "context", "n", "mean", "longest"),
    "linear": ("m",), "moe": ("m",), "memory": ("bytes",), "collective": ("bytes",),
}
"""where on the kernel's curve it lies"""


@dataclass(slots=True)
class Rows:
    """Rows of one family from one source, and what a profile must say about them."""

    family: str
    frame: pl.DataFrame
    source: str
    """the data, by name, version and file"""
    licence: str
    kernels: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    """rows left out, by reason"""
    notes: str = ""

    def distinct(self) -> Rows:
        """The same with repeats of a point merged into their median, counted as dropped."""
        by = [*KEYS[self.family], *POINTS[self.family]]
        merged = self.frame.group_by(by).agg(pl.col("^ns.*$").median()).sort(by)
        if repeats := self.frame.height - merged.height:
            self.dropped["repeats of a point (median kept)"] = repeats
        self.frame = merged
        return self

    def drop(self, reason: str, unwanted: pl.Expr) -> Rows:
        """The same without the rows for which `unwanted` is true, counted under `reason`."""
        kept = self.frame.filter(~unwanted)
        if gone := self.frame.height - kept.height:
            self.dropped[reason] = self.dropped.get(reason, 0) + gone
        self.frame = kept
        return self
