"""Number formats of weights and of the KV cache: what one matrix, or one cached row, takes in memory.

| name | a number | scales |
|---|---|---|
| fp32, bf16, fp16 | itself | none |
| fp8 | 8 bits | weights: one a tensor, not counted; cache: one for the whole cache, not counted |
| int8 | 8 bits | weights: fp16 for each output row; cache: fp16 for each token and head, of K and of V |
| int4 | 4 bits | weights: fp16 scale, 4-bit zero for 128 inputs (GPTQ, AWQ); cache: fp16 scale, zero for 32 channels |
| mxfp4 | 4 bits | one byte for 32 numbers (OCP MX) |
| nvfp4 | 4 bits | one byte (fp8) for 16 numbers |
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.registry import unknown


@dataclass(frozen=True, slots=True)
class Format:
    """A number format: bits a number, and what its scales add."""

    bits: int
    weight_group: int = 0
    """numbers of a weight matrix's row that share scales; 0: none, −1: the whole row"""
    weight_scale_bits: int = 0
    """bits of scales (and zeros) for each such group"""
    row_group: int = 0
    """channels of a cached row (one token, one head, K or V) that share scales; 0: none, −1: the whole row"""
    row_scale_bytes: int = 0


FORMATS = {
    "fp32": Format(32),
    "bf16": Format(16),
    "fp16": Format(16),
    "fp8": Format(8),
    "int8": Format(8, -1, 16, -1, 2),
    "int4": Format(4, 128, 20, 32, 4),
    "mxfp4": Format(4, 32, 8, 32, 1),
    "nvfp4": Format(4, 16, 8, 16, 1),
}
_ALIASES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
            "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8"}  # fmt: skip


def canonical(dtype: str) -> str:
    """`"bfloat16"` → `"bf16"`, `"fp8_e4m3"` → `"fp8"`. Raises InputError for a name that is not known."""
    name = _ALIASES.get(dtype.lower(), dtype.lower())
    if name not in FORMATS:
        raise unknown("number format", dtype, list(FORMATS))
    return name


def matrix_bytes(rows: int, columns: int, dtype: str) -> int:
    """Bytes of a weight matrix with `rows` outputs and `columns` inputs, its scales included."""
    f = FORMATS[canonical(dtype)]
    group = columns if f.weight_group < 0 else f.weight_group
    scale_bits = -(-columns // group) * f.weight_scale_bits if group else 0
    return -(-rows * (columns * f.bits + scale_bits) // 8)


def row_bytes(channels: int, dtype: str) -> int:
    """Bytes of one cached row: `channels` numbers of one token and one head, keys or values, its scales included."""
    f = FORMATS[canonical(dtype)]
    group = channels if f.row_group < 0 else f.row_group
    scales = -(-channels // group) * f.row_scale_bytes if group else 0
    return -(-channels * f.bits // 8) + scales


def kv_bytes(dtype: str, kv_heads: int, head_dim: int, value_dim: int | None = None, latent: bool = False) -> int:
    """Bytes of one token's K and V in one layer, for `kv_heads` heads.

    `latent` (MLA): one row of `head_dim` = kv_lora_rank + rope channels holds both, whatever the number of heads.
    Source of the formula: PagedAttention paper, section 3 (2 · heads · head size · bytes); DeepSeek-V2, section 2.1.
    """
    if latent:
        return kv_heads * row_bytes(head_dim, dtype)
    return kv_heads * (row_bytes(head_dim, dtype) + row_bytes(head_dim if value_dim is None else value_dim, dtype))
