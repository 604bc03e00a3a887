"""What a number becomes when the cache stores it and gives it back: the quantizers that the kernels are tested against
(kvsim_kernels.reference.quantize), applied to every token and head as it is written."""

from __future__ import annotations

import numpy as np
import torch
from kvsim_kernels.reference.quantize import FP8_MAX, largest, numbers, over, quantize, rounded

Tensor = torch.Tensor

REFERENCE = "bf16"
"""the cache that others are compared with"""

_PLAIN = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PRECISIONS = (*_PLAIN, "fp8", "fp8-head", "int8", "int4")
"""fp8 (the kernels' fp8_tensor) has one scale for the whole cache, 1, as engines have it without calibration; fp8-head
(their fp8) and int8 a scale for each token and head, int4 scale and zero for 32 channels"""


def stored(x: Tensor, precision: str) -> Tensor:
    """x [..., head size] after a round trip through the cache, in x's dtype. Quantizers get bf16, as in an engine."""
    if precision in _PLAIN:
        return x.to(_PLAIN[precision]).to(x.dtype)
    given = x.bfloat16().float()
    if precision == "fp8":
        return _e4m3(given).to(x.dtype)
    if precision == "fp8-head":
        scales = rounded(largest(given.numpy()) / np.float32(FP8_MAX))
        codes = _e4m3(torch.from_numpy(over(given.numpy(), scales)))
        return (codes * torch.from_numpy(scales.astype(np.float32))[..., None]).to(x.dtype)
    codes, scales = quantize(given.numpy(), precision)
    return torch.from_numpy(numbers(codes, scales, precision)).to(x.dtype)


def _e4m3(x: Tensor) -> Tensor:
    """The nearest e4m3 numbers: what the reference's fp8 gives (a test says so), twenty times faster."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float()
