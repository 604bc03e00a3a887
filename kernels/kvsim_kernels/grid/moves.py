"""Compaction, block copies and the ceilings: bytes that move, so the bound is 0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from .. import ceilings, compact, copy
from ..caches import ContiguousCache, Format, PagedCache
from ..launch import Kernel
from . import Case


def variants() -> Iterator[Kernel]:
    yield from (compact.kernel(word) for word in (4, 8, 16))
    yield copy.KERNEL
    yield from (ceilings.COPY, ceilings.READ, ceilings.EMPTY)


def filled(cache: PagedCache | ContiguousCache, seed: int) -> None:
    """Random bits in every tensor of a cache."""
    random = torch.Generator().manual_seed(seed)
    for plane in compact.planes(cache):
        flat = plane.view(torch.uint8).view(-1)
        flat.copy_(torch.randint(0, 256, flat.shape, generator=random, dtype=torch.uint8))


def compact_different(
    format: Format, head_dim: int, group: int, block_size: int, budget: int, device: torch.device
) -> float:
    """Share of the bytes that are not where they belong; what follows the kept tokens must not change."""
    random = torch.Generator().manual_seed(1)
    sequences, kv_heads, capacity = 3, 2, 128 * -(-2 * budget // 128)
    counts = [budget, 0, budget - 1]
    order = torch.rand(sequences, kv_heads, capacity, generator=random).argsort(-1)
    keep = order[..., :budget].sort(-1)[0]
    cache: PagedCache | ContiguousCache
    if block_size:
        blocks = sequences * capacity // block_size
        cache = PagedCache.zeros(blocks, block_size, kv_heads, head_dim, format, group=group, device=device)
        table = torch.randperm(blocks, generator=random).view(sequences, -1).int()
        rows = (table.long()[..., None] * block_size + torch.arange(block_size)).view(sequences, capacity)
    else:
        cache = ContiguousCache.zeros(sequences, capacity, kv_heads, head_dim, format, group=group, device=device)
        table = None
        rows = torch.arange(sequences * capacity).view(sequences, capacity)
    filled(cache, 2)
    lead = (sequences * capacity, kv_heads, -1)
    want = [plane.cpu().view(torch.uint8).view(lead).clone() for plane in compact.planes(cache)]
    for plane in want:
        old = plane.clone()
        for b, count in enumerate(counts):
            for head in range(kv_heads):
                plane[rows[b, :count], head] = old[rows[b, keep[b, head, :count]], head]
    on = None if table is None else table.to(device)
    few = torch.tensor(counts, dtype=torch.int32, device=device)
    compact.kv_compact(cache, keep.int().to(device), few, block_table=on)
    pairs = zip(compact.planes(cache), want, strict=True)
    wrong = sum(int((plane.cpu().view(torch.uint8).view(lead) != true).sum()) for plane, true in pairs)
    return wrong / sum(true.numel() for true in want)


def copy_different(
    format: Format, block_size: int, head_dim: int, pairs: list[tuple[int, int]], same: bool, device: torch.device
) -> float:
    source = PagedCache.zeros(7, block_size, 3, head_dim, format, device=device)
    target = source if same else PagedCache.zeros(9, block_size, 3, head_dim, format, device=device)
    filled(source, 3)
    want = [plane.clone() for plane in compact.planes(target)]
    for old, new in zip(compact.planes(source), want, strict=True):
        for a, b in pairs:
            new[b] = old[a]
    copy.kv_copy(source, target, torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2))
    wrong = sum(
        int((a.view(torch.uint8) != b.view(torch.uint8)).sum())
        for a, b in zip(compact.planes(target), want, strict=True)
    )
    return wrong / sum(plane.nbytes for plane in want)


def ceiling_different(size: int, device: torch.device) -> float:
    """Of a copied buffer and of the sum of a read one."""
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(4)).to(device)
    target = torch.zeros_like(source)
    ceilings.copy(source, target)
    sums = torch.zeros(ceilings.blocks(size // 16, device) + 1, dtype=torch.int32, device=device)
    ceilings.read(source, sums)
    ceilings.empty(device)
    true = int(source.cpu().numpy().view(np.uint32).sum(dtype=np.uint32))
    read = int(sums.cpu().numpy().view(np.uint32).sum(dtype=np.uint32))
    return float((source != target).float().mean()) + (true != read)


def cases(device: torch.device, wide: bool) -> Iterator[Case]:
    compactions: list[tuple[Format, int, int, int, int]] = [
        ("bf16", 96, 32, 0, 90),
        ("int8", 64, 32, 16, 600),
        ("int4", 96, 32, 128, 33),
    ]
    if wide:
        compactions += [("int4", 64, 64, 8, 200), ("int4", 256, 32, 32, 70)]
        compactions += [("fp16", 256, 32, 64, 300), ("fp8", 128, 32, 0, 1)]
    for compaction in compactions:
        format, head_dim, _, block_size, budget = compaction
        layout = f"blocks of {block_size}" if block_size else "contiguous"
        name = f"{format} heads of {head_dim}, {budget} tokens kept, {layout}"
        yield Case("kv_compact", name, 0.0, partial(compact_different, *compaction, device))
    copies: list[tuple[Format, int, int, list[tuple[int, int]], bool]] = [
        ("bf16", 16, 128, [(0, 3), (5, 1), (2, 6)], True),
        ("int8", 8, 64, [(0, 8), (0, 7), (6, 0)], False),
        ("int4", 32, 96, [], False),
    ]
    for batch in copies:
        format, block_size, head_dim, pairs, same = batch
        where = "within a cache" if same else "between caches"
        name = f"{format} blocks of {block_size}, heads of {head_dim}, {len(pairs)} pairs {where}"
        yield Case("kv_copy", name, 0.0, partial(copy_different, *batch, device))
    for size in (16, 70000 * 16):
        yield Case("ceilings", f"{size} bytes", 0.0, partial(ceiling_different, size, device))
