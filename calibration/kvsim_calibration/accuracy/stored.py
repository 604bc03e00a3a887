"""What a number becomes when the cache stores it and gives it back: the reference engine's quantizers, which are the
kernels' to the bit (a test says so), applied to every token and head as it is written."""

from __future__ import annotations

import torch

from kvsim_calibration.engine.caches.store import FP8_MAX, Format, numbers, quantize

Tensor = torch.Tensor

REFERENCE = "bf16"
"""the cache that others are compared with"""
IN_BASIS = "-basis"
"""how a precision ends whose keys are stored in a fitted basis (basis.py)"""

_PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_FORMATS: dict[str, Format] = {"fp8-head": "fp8", "int8": "int8", "int4": "int4"}
PRECISIONS = (*_PLAIN, "fp8", "fp8-head", "fp8-head" + IN_BASIS, "int8", "int4", "int4" + IN_BASIS)
"""fp8 (the kernels' fp8_tensor) has one scale for the whole cache, 1, as engines have it without calibration; fp8-head
(their fp8) and int8 a scale for each token and head, int4 scale and zero for 32 channels"""


def stored(x: Tensor, precision: str) -> Tensor:
    """x [..., head size] after a round trip through the cache, in x's dtype. Quantizers get bf16, as in an engine.

    Of a precision in a basis: x is in that basis, or values, which have none.
    """
    precision = precision.removesuffix(IN_BASIS)
    if precision in _PLAIN:
        return x.to(_PLAIN[precision]).to(x.dtype)
    given = x.bfloat16().float()
    if precision == "fp8":
        return given.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(x.dtype)
    format = _FORMATS[precision]
    return numbers(*quantize(given, format), format).to(x.dtype)
