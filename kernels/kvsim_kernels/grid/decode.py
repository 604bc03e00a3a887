"""Decode attention: head sizes, group sizes, lengths, layouts and formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from ..caches import BLOCK_SIZES, DTYPES, HEAD_SIZES, Cache, ContiguousCache, Format, PagedCache
from ..decode import Path, decode_attention, kernels
from ..launch import Kernel
from ..reference import decode as reference
from . import GROUPS, Case, relative_error

BOUNDS = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
MIXED = (0, 1, 15, 16, 17, 200)
FORMATS: list[tuple[Format, int]] = [
    ("int8", 0),
    ("fp8", 0),
    ("fp8_tensor", 0),
    ("int4", 32),
    ("int4", 64),
    ("int4", 128),
]
"""quantized ones, and channels a scale of int4"""


@dataclass
class Inputs:
    """The arguments of `decode_attention`."""

    q: torch.Tensor
    cache: Cache
    lengths: torch.Tensor
    block_table: torch.Tensor | None


def random_cache(
    lead: tuple[int, int], kv_heads: int, head_dim: int, format: Format, group: int, seed: int
) -> list[torch.Tensor]:
    """Keys, values and, if the format has them, scales, of random numbers of about unit size, on the CPU."""
    draw = torch.Generator().manual_seed(seed)
    shape = (*lead, kv_heads, head_dim)

    def uniform(*shape: int, low: float, high: float) -> torch.Tensor:
        return (low + (high - low) * torch.rand(*shape, generator=draw)).half()

    if format in ("bf16", "fp16"):
        return [torch.randn(*shape, generator=draw).to(DTYPES[format]) for _ in range(2)]
    if format in ("fp8", "fp8_tensor"):
        rows = [(torch.randn(*shape, generator=draw) * 100).clamp(-448, 448).to(torch.float8_e4m3fn) for _ in range(2)]
        return rows + ([uniform(*shape[:3], 2, low=0.005, high=0.02)] if format == "fp8" else [])
    if format == "int8":
        rows = [torch.randint(-127, 128, shape, generator=draw, dtype=torch.int8) for _ in range(2)]
        return [*rows, uniform(*shape[:3], 2, low=0.005, high=0.02)]
    rows = [torch.randint(0, 256, (*shape[:3], head_dim // 2), generator=draw, dtype=torch.uint8) for _ in range(2)]
    scale = uniform(*shape[:3], 2, head_dim // group, low=0.1, high=0.3)
    return [*rows, torch.stack([scale, scale * uniform(*scale.shape, low=-8.5, high=-6.5)], dim=-1)]


def inputs(
    lengths: Sequence[int],
    kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    format: Format | None = None,
    *,
    block_size: int = 0,
    int4_group: int = 32,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Inputs:
    """Random arguments. What no sequence owns (spare blocks, rows past a length) is NaN, or has a NaN scale.

    block_size 0 is a contiguous cache; else the blocks of the sequences lie in random order among spare ones.
    """
    chosen: Format = format or ("bf16" if dtype == torch.bfloat16 else "fp16")
    draw = torch.Generator().manual_seed(seed + 1)
    longest = max(1, *lengths) if lengths else 1
    table = None
    if block_size:
        width = -(-longest // block_size)
        blocks = len(lengths) * width + 3
        table = torch.randperm(blocks, generator=draw)[: len(lengths) * width].reshape(-1, width).int()
        lead = (blocks, block_size)
    else:
        lead = (len(lengths), longest)
    tensors = random_cache(lead, kv_heads, head_dim, chosen, int4_group, seed)
    owned = torch.zeros(lead, dtype=torch.bool)
    for i, length in enumerate(lengths):
        if table is None:
            owned[i, :length] = True
        else:
            owned.view(-1)[[int(table[i, t // block_size]) * block_size + t % block_size for t in range(length)]] = True
            table[i, -(-length // block_size) :] = -1  # never read
    for tensor in tensors:
        if tensor.dtype == torch.float8_e4m3fn:
            tensor.view(torch.uint8)[~owned] = 0x7F
        elif tensor.dtype.is_floating_point:
            tensor[~owned] = float("nan")
    on_device = [tensor.to(device) for tensor in tensors]
    scales = on_device[2] if len(on_device) == 3 else None
    whole = (0.011, 0.013) if chosen == "fp8_tensor" else (1.0, 1.0)
    cache = (PagedCache if block_size else ContiguousCache)(on_device[0], on_device[1], scales, *whole)
    q = torch.randn(len(lengths), kv_heads * group, head_dim, generator=draw).to(dtype).to(device)
    return Inputs(
        q, cache, torch.tensor(lengths, dtype=torch.int32, device=device), None if table is None else table.to(device)
    )


def error(given: Inputs, kernel: Path, splits: int) -> float:
    """Relative error of the worst sequence."""
    out = torch.full_like(given.q, float("nan"))
    decode_attention(
        given.q, given.cache, given.lengths, block_table=given.block_table, kernel=kernel, splits=splits, out=out
    )
    want = reference.decode_attention(given.q, given.cache, given.lengths, given.block_table)
    return max((relative_error(have, true) for have, true in zip(out, want, strict=True)), default=0.0)


def variants() -> Iterable[Kernel]:
    yield from kernels()


def cases(device: torch.device, wide: bool) -> Iterator[Case]:
    def case(
        path: Path,
        lengths: Sequence[int],
        kv_heads: int,
        group: int,
        head_dim: int,
        dtype: torch.dtype,
        format: Format | None,
        block: int,
        splits: int,
        int4_group: int = 32,
    ) -> Case:
        def run() -> float:
            given = inputs(
                lengths,
                kv_heads,
                group,
                head_dim,
                dtype,
                format,
                block_size=block,
                int4_group=int4_group,
                device=device,
            )
            return error(given, path, splits)

        layout = f"blocks of {block}" if block else "contiguous"
        stored = f"{format} cache, " if format else ""
        if format == "int4":
            stored = f"int4 cache in groups of {int4_group}, "
        shape = f"{kv_heads} x {group} heads of {head_dim}, lengths {','.join(map(str, lengths))}, {splits} splits"
        name = f"decode {path} {format}" if format else f"decode {path}"
        return Case(name, f"{str(dtype)[6:]}, {stored}{layout}, {shape}", BOUNDS[dtype], run)

    bf16, fp16 = torch.bfloat16, torch.float16
    paths: tuple[Path, ...] = ("cuda-cores", "tensor-cores")
    for path in paths:
        for head_dim in (64, 96, 128, 256):
            yield case(path, MIXED, 2, 4, head_dim, bf16, None, 16, 3)
            yield case(path, (7, 130), 1, 3, head_dim, fp16, None, 0, 1)
        for group in GROUPS if wide else (1, 2, 5, 8, 16, 64):
            yield case(path, (33, 1), 1, group, 64, bf16, None, 8, 2)
        for block in (8, 16, 32, 64, 128):
            yield case(path, (block - 1, block, block + 1, 3 * block), 1, 8, 128, bf16, None, block, 2)
        if path == "cuda-cores":
            continue
        for format, int4_group in FORMATS:
            for dtype in (bf16, fp16) if wide or int4_group in (0, 32) else (bf16,):
                for head_dim in (64, 96, 128, 256) if wide else (128,):
                    if not int4_group or head_dim % int4_group == 0:
                        yield case(path, MIXED, 2, 4, head_dim, dtype, format, 16, 2, int4_group)
            yield case(path, (100, 40), 1, 12, 128 if int4_group else 64, bf16, format, 0, 1, int4_group)
    if wide:
        for path, stored, int4_group, head_dim, block, dtype, group, kv_heads, splits in combined():
            page = block or 16
            lengths = (page + 1, 0, 1, page - 1, page, 2 * page + 5, 0)
            yield case(path, lengths, kv_heads, group, head_dim, dtype, stored, block, splits, int4_group)


def combined() -> Iterator[tuple[Path, Format | None, int, int, int, torch.dtype, int, int, int]]:
    """Every kernel and format with every head size and layout, while dtype, group size, KV heads and splits take turns.

    So each kernel and format meets both dtypes at every head size and layout, and every group size if it has 17 cases.
    """
    stored: list[tuple[Path, Format | None, int]] = [("cuda-cores", None, 0), ("tensor-cores", None, 0)]
    stored += [("tensor-cores", format, int4_group) for format, int4_group in FORMATS]
    for start, (path, format, int4_group) in enumerate(stored):
        turn = 5 * start
        for head_dim, block in product(HEAD_SIZES, (0, *BLOCK_SIZES)):
            if not int4_group or head_dim % int4_group == 0:
                dtype = (torch.bfloat16, torch.float16)[(turn + turn // 6) % 2]
                yield path, format, int4_group, head_dim, block, dtype, GROUPS[turn % 17], 1 + turn % 3, 1 + turn % 4
                turn += 1


__all__ = ["Inputs", "cases", "error", "inputs", "variants"]
