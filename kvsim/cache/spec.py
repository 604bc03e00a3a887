"""A cache policy as a point on six axes: layout, prefix, retention, precision, tier, pressure; beside it the kernel.

Presets and axis flags meet here; `validate` refuses, in one sentence, what does not go together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from kvsim.cache.retention import FULL, Full, Retention, parse_retention
from kvsim.cache.tier import NO_TIER, Tier, parse_tier
from kvsim.errors import InputError
from kvsim.precision import canonical
from kvsim.registry import unknown

LAYOUTS = ("none", "reserve", "oracle", "fit", "best-fit", "buddy", "paged")
PREFIXES = ("off", "hash", "radix")
EVICTIONS = ("lru", "fifo", "lfu", "slru", "priority", "belady")
PRESSURES = ("recompute", "swap")
ATTENTIONS = ("flash", "naive")


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What a cache does with memory. Frozen; made by a preset and overrides, checked by `validate`."""

    layout: str = "paged"
    block_size: int = 16
    """tokens a block (paged), or a piece of growth (fit, best-fit)"""
    prefix: str = "off"
    eviction: str = "lru"
    """the order in which idle prefix blocks go"""
    retention: Retention = FULL
    precision: str = "auto"
    """of the cache; auto: that of the activations"""
    tier: Tier = NO_TIER
    on_pressure: str = "recompute"
    attention: Literal["flash", "naive"] = "flash"
    about: str = field(default="", compare=False)
    """one line for lists"""

    def override(self, **axes: Any) -> CacheSpec:
        """A copy with those axes that are not None replaced, retention and tier given as text. Validated."""
        given = {name: value for name, value in axes.items() if value is not None}
        known = [axis.name for axis in fields(self) if axis.name != "about"]
        for name in given:
            if name not in known:
                raise unknown("cache axis", name, known)
        if isinstance(given.get("retention"), str):
            given["retention"] = parse_retention(given["retention"])
        if isinstance(given.get("tier"), str):
            given["tier"] = parse_tier(given["tier"])
        spec = replace(self, **given)
        spec.validate()
        return spec

    def validate(self) -> None:
        """Raise InputError with one sentence where an axis has no such value, or two do not go together."""
        for axis, value, known in (
            ("layout", self.layout, LAYOUTS), ("prefix", self.prefix, PREFIXES), ("eviction", self.eviction, EVICTIONS),
            ("on-pressure", self.on_pressure, PRESSURES), ("attention", self.attention, ATTENTIONS),
        ):
            if value not in known:
                raise unknown(axis, value, list(known))
        if self.precision != "auto":
            canonical(self.precision)
        if not 1 <= self.block_size <= 1024:
            raise InputError(f"block size {self.block_size} is out of range: 1 to 1024 tokens")
        refusal = self._refusal()
        if refusal:
            raise InputError(refusal)

    def _refusal(self) -> str | None:
        full = isinstance(self.retention, Full)
        if self.prefix != "off" and self.layout != "paged":
            return f"prefix sharing needs layout paged: {self.layout} has no blocks that two requests could share"
        if self.prefix != "off" and not full:
            return "retention drops tokens out of the middle of shared prefixes: use prefix off, or retention full"
        if not full and self.layout != "paged":
            return f"retention is modelled on layout paged, where dropped blocks are freed; {self.layout} is not"
        if self.layout == "none" and (self.precision != "auto" or self.tier.bytes or self.on_pressure == "swap"):
            return "layout none keeps no cache, so there is nothing to quantize, to offload or to swap"
        if self.tier.bytes and self.prefix != "hash" and self.on_pressure != "swap":
            return "a host tier holds idle prefix blocks or swapped sequences: set prefix hash or on-pressure swap"
        if self.on_pressure == "swap" and not full:
            return "swapping what retention has cut is not modelled: use on-pressure recompute, or retention full"
        if self.on_pressure == "swap" and not self.tier.bytes:
            return "swapping needs somewhere to swap to: set a tier, such as host:64GiB"
        known = {"off": EVICTIONS, "hash": ("lru", "fifo", "lfu", "belady"), "radix": EVICTIONS[:-1]}[self.prefix]
        if self.eviction not in known:
            return f"prefix {self.prefix} has no eviction order {self.eviction}: it has {', '.join(known)}"
        return None

    def facts(self) -> dict[str, Any]:
        """The axes as plain data, for JSON and tables."""
        return {
            "layout": self.layout, "block_size": self.block_size, "prefix": self.prefix, "eviction": self.eviction,
            "retention": str(self.retention), "precision": self.precision, "tier": str(self.tier),
            "on_pressure": self.on_pressure, "attention": self.attention,
        }
