"""What is known about a device without running anything on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from kvsim.device.dtypes import COMPUTE_DTYPES
from kvsim.device.provenance import Frozen, Positive


class Facts(Frozen):
    """Peak numbers of one device. Bandwidths are bytes/s, one direction; FLOP/s are dense, without sparsity."""

    vendor: str
    arch: str
    """e.g. `sm_90`, `gfx942`, `x86_64`"""
    memory_bytes: Annotated[int, Field(gt=0)]
    """as the driver reports it to a program (79.25 GiB for an "80 GB" H100), not as it is sold"""
    memory_source: str
    """where memory_bytes was seen; says so when it is an estimate"""
    bandwidth: Positive
    """peak device-memory bandwidth"""
    flops: dict[str, Positive]
    """peak dense FLOP/s by compute dtype"""
    l2_bytes: Annotated[int, Field(gt=0)]
    sms: Annotated[int, Field(gt=0)]
    """streaming multiprocessors, compute units or cores"""
    link_bandwidth: Positive
    """between two devices of a node"""
    link_latency_ns: Positive
    host_bandwidth: Positive
    """between the device and pinned host memory"""
    power_watts: Positive
    sources: tuple[str, ...]
    """documents the numbers were taken from"""

    @field_validator("flops")
    @classmethod
    def _known_dtypes(cls, flops: dict[str, float]) -> dict[str, float]:
        strange = sorted(set(flops) - set(COMPUTE_DTYPES))
        if strange or "bf16" not in flops:
            raise ValueError(f"flops has keys {sorted(flops)}: use {', '.join(COMPUTE_DTYPES)}, bf16 always")
        return flops

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s a kernel with operands of `dtype` can reach: a dtype without units of its own runs as bf16."""
        return self.flops.get(dtype, self.flops["bf16"])
