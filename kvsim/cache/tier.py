"""A second level behind device memory: what it holds and how fast the link to it is."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InputError
from kvsim.units import format_bytes, parse_bytes, parse_duration_ns


@dataclass(frozen=True, slots=True)
class Tier:
    """`bytes` of host memory for one replica behind a link. Zero bytes: no tier."""

    bytes: int = 0
    bandwidth: int = 50 * 10**9
    """bytes a second, each way (PCIe 5.0 x16 reaches about 50 GB/s of its 63)"""
    latency_ns: int = 10_000
    """of one transfer, before its first byte"""

    def __str__(self) -> str:
        return f"host:{format_bytes(self.bytes)}" if self.bytes else "none"


NO_TIER = Tier()


def parse_tier(text: str) -> Tier:
    """`"none"`, `"host:64GiB"`, `"host:64GiB,bandwidth=25GB,latency=20us"` → the tier."""
    name, _, rest = text.partition(":")
    if name == "none" and not rest:
        return NO_TIER
    if name != "host" or not rest:
        raise InputError(f"tier {text!r} is not understood: write none, or host:64GiB[,bandwidth=25GB][,latency=20us]")
    size, *options = rest.split(",")
    values: dict[str, int] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key == "bandwidth":
            values["bandwidth"] = parse_bytes(value)
        elif key == "latency":
            values["latency_ns"] = parse_duration_ns(value)
        else:
            raise InputError(f"tier {text!r}: {option!r} is not understood; it takes bandwidth=SIZE and latency=TIME")
    tier = Tier(parse_bytes(size), **values)
    if tier.bytes <= 0 or tier.bandwidth <= 0:
        raise InputError(f"tier {text!r}: its size and bandwidth must be above zero")
    return tier
