"""Number formats as kernels see them: `kvsim.precision` and the block-scaled fp8 of DeepSeek-V3, which has kernels of
its own."""

from __future__ import annotations

from kvsim import precision

COMPUTE_DTYPES = ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")

_COMPUTED_IN = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "int8": "int8",
                "int4": "bf16", "mxfp4": "bf16", "nvfp4": "fp4"}
"""int4 and mxfp4 are formats of weights only: kernels widen them to 16 bits (AWQ, GPTQ, Marlin)"""

_SAMPLE = 1 << 14
"""columns of a wide row, over which the bytes of scales average out"""


def canonical(dtype: str) -> str:
    """`"bfloat16"` → `"bf16"`, `"fp8_e4m3"` → `"fp8"`. Raises InputError for a name that is not known."""
    return dtype if dtype == "fp8_block" else precision.canonical(dtype)


def element_bytes(dtype: str) -> float:
    """Bytes a weight takes in memory, scales included."""
    return precision.matrix_bytes(1, _SAMPLE, "fp8" if dtype == "fp8_block" else dtype) / _SAMPLE


def compute_dtype(dtype: str) -> str:
    """The format a product with weights of `dtype` is computed in: a key of `Facts.flops`."""
    return _COMPUTED_IN[canonical(dtype)]
