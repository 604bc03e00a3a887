"""Memory that cases share: random data made once for each dtype, cut into views for one case after another.

A calibration is hundreds of cases; fresh memory for each would cost more (page faults, random numbers) than timing."""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor
TILE = 1 << 20
"""random numbers that a larger tensor repeats"""
SMALLEST = 1 << 26
"""bytes of an arena at first"""


class Arena:
    """One flat tensor a dtype, as large as the largest case so far."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._flat: dict[torch.dtype, Tensor] = {}

    def views(self, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        """`count` tensors of random numbers, side by side. The next call gives the same memory away again."""
        size = math.prod(shape)
        flat = self._flat.get(dtype)
        if flat is None or len(flat) < count * size:
            self._flat.pop(dtype, None)
            del flat
            flat = torch.empty(max(count * size, SMALLEST // dtype.itemsize), dtype=dtype, device=self.device)
            fill(flat)
            self._flat[dtype] = flat
        return [flat[at * size : (at + 1) * size].view(shape) for at in range(count)]


def fill(flat: Tensor) -> None:
    """Random numbers of any format: codes are random bytes, those of fp8 below 2 and never NaN."""
    raw = flat.view(torch.uint8) if flat.element_size() == 1 else flat
    head, generator = raw[:TILE], torch.Generator(flat.device).manual_seed(1)
    if flat.element_size() == 1:
        head.random_(0, 256, generator=generator)
        if flat.dtype == torch.float8_e4m3fn:
            head &= 0xBF
    else:
        head.normal_(generator=generator)
    for start in range(TILE, len(raw), TILE):
        part = raw[start : start + TILE]
        part.copy_(head[: len(part)])
