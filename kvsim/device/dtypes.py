"""Number formats: bytes an element takes in memory and the format the arithmetic runs in."""

from __future__ import annotations

from kvsim.registry import unknown

COMPUTE_DTYPES = ("fp32", "tf32", "bf16", "fp8", "int8", "fp4")

_FORMATS: dict[str, tuple[float, str]] = {
    # name: (bytes an element, scales included where the format fixes them; format of the arithmetic)
    "fp32": (4.0, "fp32"),
    "bf16": (2.0, "bf16"),
    "fp16": (2.0, "bf16"),
    "fp8": (1.0, "fp8"),
    "fp8_block": (1.0 + 4 / (128 * 128), "fp8"),  # one fp32 scale for 128 × 128 weights (DeepSeek-V3)
    "int8": (1.0, "int8"),
    "int4": (0.5 + 4 / 128, "bf16"),  # weight only: scale and zero in fp16 for 128 weights (AWQ, GPTQ)
    "mxfp4": (0.5 + 1 / 32, "bf16"),  # one byte of scale for 32 weights (OCP MX), computed in bf16
    "nvfp4": (0.5 + 1 / 16, "fp4"),  # one byte of scale for 16 weights
}
_ALIASES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
            "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}

DTYPES = tuple(_FORMATS)


def canonical(dtype: str) -> str:
    """`"bfloat16"` → `"bf16"`, `"fp8_e4m3"` → `"fp8"`. Raises InputError for a name that is not known."""
    name = _ALIASES.get(dtype, dtype)
    if name not in _FORMATS:
        raise unknown("number format", dtype, [*_FORMATS, *_ALIASES])
    return name


def element_bytes(dtype: str) -> float:
    """Bytes an element takes in memory."""
    return _FORMATS[canonical(dtype)][0]


def compute_dtype(dtype: str) -> str:
    """The format a product with weights of `dtype` is computed in: a key of `Facts.flops`."""
    return _FORMATS[canonical(dtype)][1]
