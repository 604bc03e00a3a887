"""Append, plain and quantizing: stored bits are compared, so the bound is 0."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from ..append import CODES, PLAIN, int4_kernel, kv_append, scaled_kernel
from ..caches import HEAD_SIZES, INT4_GROUPS, Cache, ContiguousCache, Format, PagedCache
from ..checks import FLOATS
from ..compact import planes
from ..launch import Kernel
from ..reference.quantize import quantize
from . import Case

TENSOR_SCALES = (0.013, 0.027)
BLOCK = 8


def variants() -> Iterator[Kernel]:
    yield PLAIN
    for dtype in FLOATS:
        for head_dim in HEAD_SIZES:
            yield from (scaled_kernel(codes, dtype, head_dim) for codes in CODES)
            yield from (int4_kernel(dtype, head_dim, group) for group in INT4_GROUPS if head_dim % group == 0)


def different(
    format: Format, dtype: torch.dtype, kv_heads: int, head_dim: int, group: int, paged: bool, device: torch.device
) -> float:
    """Share of the cache's numbers that are not as the reference stores them; rows without a token must stay zero."""
    random = torch.Generator().manual_seed(0)
    rows, tokens = 5 * BLOCK, 11
    layout = PagedCache if paged else ContiguousCache
    made = layout.zeros(rows // BLOCK, BLOCK, kv_heads, head_dim, format, group=group, device=device)
    cache = layout(made.keys, made.values, made.scales, *TENSOR_SCALES)
    slots = torch.randperm(rows, generator=random)[:tokens]
    slots[4] = -1
    keys, values = (
        torch.randn(tokens, kv_heads, head_dim, generator=random) * (10 ** torch.linspace(-6, 4, tokens))[:, None, None]
        for _ in range(2)
    )
    keys, values = keys.to(dtype), values.to(dtype)
    keys[1, 0, 5], values[2, 0, 0], keys[3] = torch.nan, -torch.inf, 0
    kv_append(keys.to(device), values.to(device), cache, slots.to(device))

    want = layout.zeros(rows // BLOCK, BLOCK, kv_heads, head_dim, format, group=group)
    stored = slots >= 0
    put(want, format, group, slots[stored], keys[stored], values[stored])
    pairs = list(zip(planes(cache), planes(want), strict=True))
    return sum(unequal(got.cpu(), true) for got, true in pairs) / sum(true.numel() for _, true in pairs)


def unequal(got: torch.Tensor, want: torch.Tensor) -> int:
    """Numbers whose bits differ; all NaNs of a 16-bit tensor are alike."""
    bits = torch.int16 if want.element_size() == 2 else torch.uint8
    alike = got.view(bits) == want.view(bits)
    if bits == torch.int16:
        alike |= got.isnan() & want.isnan()
    return int((~alike).sum())


def put(
    cache: Cache, format: Format, group: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> None:
    """What kv_append does, by the NumPy reference, on a CPU cache."""
    for side, (x, tensor, tensor_scale) in enumerate(
        zip((keys, values), (cache.keys, cache.values), TENSOR_SCALES, strict=True)
    ):
        target = tensor.flatten(0, 1)
        if format in ("bf16", "fp16"):
            target[slots] = x
            continue
        codes, scales = quantize(x.float().numpy(), format, group=group, tensor_scale=tensor_scale)
        target.view(torch.uint8)[slots] = torch.from_numpy(codes.view(np.uint8))
        if scales is not None and cache.scales is not None:
            cache.scales.flatten(0, 1)[slots, :, side] = torch.from_numpy(scales)


def cases(device: torch.device, wide: bool) -> Iterator[Case]:
    bf16, fp16 = FLOATS
    chosen: list[tuple[Format, torch.dtype, int, int, int, bool]] = [
        ("bf16", bf16, 3, 96, 32, False),
        ("int8", bf16, 2, 128, 32, True),
        ("int8", fp16, 3, 96, 32, False),
        ("fp8", bf16, 2, 128, 32, True),
        ("fp8_tensor", bf16, 2, 128, 32, True),
        ("int4", bf16, 2, 128, 32, True),
        ("int4", bf16, 1, 128, 128, False),
    ]
    if wide:
        scaled: tuple[Format, ...] = ("int8", "fp8", "fp8_tensor")
        for dtype, head_dim in itertools.product(FLOATS, HEAD_SIZES):
            chosen += [(format, dtype, 2, head_dim, 32, True) for format in scaled]
            chosen += [("int4", dtype, 2, head_dim, group, True) for group in INT4_GROUPS if head_dim % group == 0]
        chosen.append(("fp16", fp16, 1, 256, 32, True))
    for case in chosen:
        format, dtype, kv_heads, head_dim, group, paged = case
        groups = f" in groups of {group}" if format == "int4" else ""
        name = f"{str(dtype)[6:]}{groups}, {kv_heads} heads of {head_dim}, {'paged' if paged else 'contiguous'}"
        yield Case(f"kv_append {format}", name, 0.0, partial(different, *case, device))
