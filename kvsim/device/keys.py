"""Keys of curves: all that makes a kernel a different kernel. Counts are per device, after tensor parallelism."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvsim.device.dtypes import canonical
from kvsim.device.provenance import Frozen
from kvsim.precision import kv_bytes

Count = Annotated[int, Field(ge=1)]
AttentionKernel = Literal["flash", "naive"]


class AttentionKey(Frozen):
    """An attention kernel. For MLA, decode runs on the latent cache (kv_heads 1, head_dim 576, value_dim 512,
    latent True) and prefill on expanded heads (kv_heads = heads, head_dim 192, value_dim 128, latent False)."""

    heads: Count
    kv_heads: Count
    head_dim: Count
    value_dim: Annotated[int, Field(ge=0)] = 0
    """length of a value vector; 0 in a file means head_dim"""
    kv_dtype: str = "bf16"
    block_size: Annotated[int, Field(ge=0)] = 0
    """tokens a page; 0: contiguous, or the source does not say"""
    window: Annotated[int, Field(ge=0)] = 0
    """sliding window in tokens; 0: full attention"""
    latent: bool = False
    """values are the first value_dim elements of the cached row (MLA): nothing else is read"""
    kernel: AttentionKernel = "flash"

    @field_validator("kv_dtype")
    @classmethod
    def _canonical(cls, name: str) -> str:
        name = canonical(name)
        return "bf16" if name == "fp16" else name  # the same bytes, the same kernels

    @model_validator(mode="before")
    @classmethod
    def _value_dim(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("value_dim"):
            return {**data, "value_dim": data.get("head_dim", 0)}
        return data

    @cached_property
    def read_bytes_per_token(self) -> int:
        """bytes of K and V that a cached token holds in one layer, all KV heads of this device, scales included"""
        return kv_bytes(self.kv_dtype, self.kv_heads, self.head_dim, self.value_dim, self.latent)

    @cached_property
    def flops_per_pair(self) -> int:
        """FLOPs for one query token against one key token, all heads of this device"""
        return 2 * self.heads * (self.head_dim + self.value_dim)


class MoeKey(Frozen):
    """Routed experts of one layer on one device: each expert is a gated MLP hidden → inter → hidden."""

    hidden: Count
    inter: Count
    """after tensor parallelism"""
    experts: Count
    """held by this device"""
    top_k: Count
    """experts a token is sent to, of those held by this device"""

    @model_validator(mode="after")
    def _top_k(self) -> MoeKey:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} exceeds experts {self.experts}")
        return self
