"""The kernels one step of a model runs on one device, after tensor parallelism: what `CostModel` adds up."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.device.curves import MemoryOp
from kvsim.device.keys import AttentionKey, MoeKey


@dataclass(frozen=True, slots=True)
class Linear:
    """`times` products a step: Y[m, N] = X[m, K] · W[K, N]."""

    name: str
    n: int
    k: int
    dtype: str
    times: int


@dataclass(frozen=True, slots=True)
class Experts:
    """`times` layers a step of routed experts over m tokens."""

    key: MoeKey
    dtype: str
    times: int


@dataclass(frozen=True, slots=True)
class Memory:
    """`times` kernels a step that read and write `bytes_per_token` for each of m tokens."""

    op: MemoryOp
    bytes_per_token: float
    times: int
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class Attention:
    """`layers` attention layers of one group (full, window w)."""

    decode: AttentionKey
    prefill: AttentionKey
    layers: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """One step's kernels on one device."""

    attention: tuple[Attention, ...]
    """in the order of StepShape's groups"""
    linear: tuple[Linear, ...]
    head: Linear
    """lm_head, over the rows that sample"""
    sample_bytes_per_row: float
    experts: tuple[Experts, ...]
    memory: tuple[Memory, ...]
    """elementwise kernels and the append to the cache"""
    score_bytes_per_token: float
    """bytes an eviction policy's scoring moves for a cached token, all layers"""
    reductions: int
    """all-reduces a step"""
    reduce_bytes_per_token: float
    gpus: int
    """devices that take part in an all-reduce"""
