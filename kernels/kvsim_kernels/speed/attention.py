"""Decode and prefill attention as points.

Bytes: the cache read once, q and out. FLOPs: 4 for each visible (query, key) pair and channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from .. import decode
from ..caches import Cache, ContiguousCache, Format, PagedCache
from ..grid import relative_error
from ..prefill import Rung, prefill_attention
from ..reference import cache as held
from ..reference import prefill as reference
from ..uncached import UncachedWorkspace, uncached_decode_attention
from . import rivals
from .limits import noise, normal
from .points import Point, Subject, void

SAMPLE = 4  # queries that are compared with float64
DECODE_BATCHES = ((1, 1024), (1, 8192), (1, 131072), (16, 1024), (16, 4096), (128, 1024), (256, 2048))
DECODE_HEADS = ((32, 1), (8, 2), (8, 8), (4, 16), (1, 64))  # KV heads, query heads of each


@dataclass(frozen=True)
class Shape:
    """A batch of equally long sequences; `queries` of each are new."""

    batch: int
    length: int
    queries: int = 1
    kv_heads: int = 8
    group: int = 4
    head_dim: int = 128
    format: Format = "bf16"
    int4_group: int = 32
    block_size: int = 0

    @property
    def case(self) -> str:
        stored = f"int4 in {self.int4_group}s" if self.format == "int4" else self.format
        layout = f"blocks of {self.block_size}" if self.block_size else "contiguous"
        new = f"{self.queries} of " if self.queries > 1 else ""
        heads = f"{self.kv_heads * self.group}/{self.kv_heads} heads of {self.head_dim}"
        return f"{stored}, {layout}, {self.batch} x {new}{self.length} tokens, {heads}"

    @property
    def cache_bytes(self) -> int:
        """Of all tokens, scales included (the layouts are in caches.py)."""
        bits = {"bf16": 16, "fp16": 16, "int4": 4}.get(self.format, 8)
        scales = {"int8": 2, "fp8": 2, "int4": 4 * self.head_dim // self.int4_group}.get(self.format, 0)
        return self.batch * self.length * self.kv_heads * 2 * (self.head_dim * bits // 8 + scales)

    @property
    def query_bytes(self) -> int:
        """Of q, and of out."""
        return self.batch * self.queries * self.kv_heads * self.group * self.head_dim * 2

    @property
    def pairs(self) -> int:
        """Visible (query, key) pairs over all query heads."""
        whole = self.queries * self.length - self.queries * (self.queries - 1) // 2
        return self.batch * self.kv_heads * self.group * whole


def filled(shape: Shape, device: torch.device, seed: int) -> tuple[Cache, torch.Tensor | None]:
    """A cache of random numbers, and its block table: blocks in random order."""
    width = -(-shape.length // (shape.block_size or 1))
    lead = (shape.batch * width, shape.block_size) if shape.block_size else (shape.batch, shape.length)
    layout = PagedCache if shape.block_size else ContiguousCache
    cache = layout.zeros(*lead, shape.kv_heads, shape.head_dim, shape.format, group=shape.int4_group, device=device)
    random = torch.Generator(device).manual_seed(seed)
    for tensor in (cache.keys, cache.values):
        if tensor.dtype.is_floating_point and tensor.element_size() == 2:
            tensor.normal_(generator=random)
        else:
            bits = noise(tensor.nbytes, device, seed)
            codes = bits & 0xBF if tensor.dtype == torch.float8_e4m3fn else bits  # fp8: at most 1.875, no NaN
            tensor.view(torch.uint8).view(-1).copy_(codes)
    if cache.scales is not None:
        cache.scales.uniform_(0.005, 0.02, generator=random)
    table = None
    if shape.block_size:
        table = torch.randperm(shape.batch * width, device=device, generator=random).view(shape.batch, width).int()
    return cache, table


def piece(shape: Shape, cache: Cache, table: torch.Tensor | None) -> Cache:
    """The last sequence's tokens of the first KV head, as a cache of its own on the CPU."""
    if table is None:
        rows = torch.arange((shape.batch - 1) * shape.length, shape.batch * shape.length, device=cache.device)
    else:
        offsets = torch.arange(shape.block_size, device=cache.device)
        rows = (table[-1].long()[:, None] * shape.block_size + offsets).flatten()[: shape.length]

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flatten(0, 1)[rows][None, :, :1].cpu().contiguous()

    scales = None if cache.scales is None else cut(cache.scales)
    return ContiguousCache(cut(cache.keys), cut(cache.values), scales, cache.key_scale, cache.value_scale)


def sampled_error(shape: Shape, cache: Cache, table: torch.Tensor | None, q: torch.Tensor, out: torch.Tensor) -> float:
    """Of the last queries of the last sequence, in the first KV head's group; infinite if any output is NaN."""
    if bool(out.isnan().any()):
        return float("inf")
    count = min(SAMPLE, shape.queries)
    keys, values = held.numbers(piece(shape, cache, table))
    part = q[-count:, : shape.group].double().cpu()
    want, _ = reference.prefill_attention(part, keys, values, [0, count], [shape.length], shape.head_dim**-0.5)
    return relative_error(out[-count:, : shape.group], want)


def decode_subject(shape: Shape, path: decode.Path, device: torch.device, seed: int) -> Subject:
    cache, table = filled(shape, device, seed)
    heads = shape.kv_heads * shape.group
    q = normal((shape.batch, heads, shape.head_dim), device, seed + 1)
    lengths = torch.full((shape.batch,), shape.length, dtype=torch.int32, device=device)
    out = torch.full_like(q, torch.nan)
    splits = decode.default_splits(q, cache, shape.length, path)
    size = decode.workspace_size(shape.batch, heads, shape.head_dim, splits)
    workspace = torch.empty(size, dtype=torch.float32, device=device)

    attend = partial(decode.decode_attention, block_table=table, kernel=path, splits=splits, check_contents=False)
    launch = partial(attend, q, cache, lengths, out=out, workspace=workspace)
    others = rivals.decode(q, cache, lengths, table) if path == "tensor-cores" else {}
    return Subject(lambda: void(launch()), lambda: sampled_error(shape, cache, table, q, out), others)


def decode_points(tiny: bool) -> Iterator[Point]:
    large, middle = ((2, 40), (1, 33)) if tiny else ((64, 8192), (16, 4096))
    first = partial(Shape, *large, kv_heads=1 if tiny else 8)
    shapes = [first(), first(block_size=16)]
    shapes += [first(block_size=16, format=format) for format in ("int8", "fp8", "fp8_tensor", "int4")]
    shapes += [first(block_size=16, format="int4", int4_group=128)]
    if not tiny:
        shapes += [Shape(batch, length) for batch, length in DECODE_BATCHES]
        shapes += [Shape(*middle, block_size=block_size) for block_size in (8, 32, 128)]
        shapes += [Shape(*middle, format=format) for format in ("int8", "fp8", "int4")]
        shapes += [Shape(*middle, kv_heads=heads, group=group) for heads, group in DECODE_HEADS]
        shapes += [Shape(*middle, head_dim=head_dim) for head_dim in (64, 96, 256)]
    paths: tuple[decode.Path, ...] = ("tensor-cores", "cuda-cores")
    for path in paths:
        for shape in shapes if path == "tensor-cores" else shapes[:2]:
            size = shape.cache_bytes + 2 * shape.query_bytes
            flops = 4 * shape.pairs * shape.head_dim
            make = partial(decode_subject, shape, path)
            yield Point(f"decode {path}", shape.case, "read", 5e-3, size, flops, size, make)
    for batch, length in ((2, 20),) if tiny else ((1, 1024), (1, 8192), (16, 2048)):
        shape, width = Shape(batch, length, kv_heads=1 if tiny else 8), 64 if tiny else 4096
        size = 2 * batch * length * width + shape.cache_bytes + 2 * shape.query_bytes
        flops = 4 * batch * length * width * shape.kv_heads * shape.head_dim + 4 * shape.pairs * shape.head_dim
        case = f"{shape.case}, model width {width}"
        yield Point("decode uncached", case, "gemm", 5e-3, size, flops, size, partial(uncached_subject, shape, width))


def uncached_subject(shape: Shape, width: int, device: torch.device, seed: int) -> Subject:
    q = normal((shape.batch, shape.kv_heads * shape.group, shape.head_dim), device, seed)
    hidden = normal((shape.batch, shape.length, width), device, seed + 1)
    weights = [normal((shape.kv_heads, shape.head_dim, width), device, seed + i) * width**-0.5 for i in (2, 3)]
    lengths = torch.full((shape.batch,), shape.length, dtype=torch.int32, device=device)
    out = torch.full_like(q, torch.nan)

    workspace = UncachedWorkspace.of(hidden, weights[0])
    recompute = partial(
        uncached_decode_attention, q, hidden, weights[0], weights[1], lengths, workspace=workspace, check_contents=False
    )

    def error() -> float:
        keys, values = ((hidden[-1].double() @ weight[0].double().T).bfloat16() for weight in weights)
        last = Shape(1, shape.length, group=shape.group)
        return sampled_error(last, ContiguousCache(keys[None, :, None], values[None, :, None]), None, q[-1:], out[-1:])

    return Subject(lambda: void(recompute(out=out)), error)


def prefill_subject(shape: Shape, kernel: Rung, device: torch.device, seed: int) -> Subject:
    cache, table = filled(shape, device, seed)
    heads = shape.kv_heads * shape.group
    q = normal((shape.batch * shape.queries, heads, shape.head_dim), device, seed + 1)
    lengths = torch.full((shape.batch,), shape.length, dtype=torch.int32, device=device)
    starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * shape.queries
    out = torch.full_like(q, torch.nan)
    workspace = None
    if kernel == "naive":
        workspace = torch.empty(shape.batch, heads, shape.queries, shape.length, device=device)

    attend = partial(prefill_attention, block_table=table, most_queries=shape.queries, check_contents=False)
    launch = partial(attend, q, cache, lengths, starts, kernel=kernel, out=out, workspace=workspace)
    others = rivals.prefill(q, cache, shape.queries) if kernel == "flash" and table is None else {}
    return Subject(lambda: void(launch()), lambda: sampled_error(shape, cache, table, q, out), others)


def prefill_points(tiny: bool) -> Iterator[Point]:
    if tiny:
        shapes = [Shape(1, 40, 40, kv_heads=1), Shape(2, 40, 8, kv_heads=1, block_size=16)]
    else:
        shapes = [Shape(1, length, length) for length in (512, 1024, 4096, 16384)] + [Shape(8, 2048, 2048)]
        shapes += [Shape(1, context + 512, 512, block_size=16) for context in (2048, 8192, 32768)]
        shapes += [Shape(1, 4096, 4096, head_dim=head_dim) for head_dim in (64, 96, 256)]
        shapes += [Shape(1, 4096, 4096, kv_heads=32, group=1), Shape(1, 4096, 4096, block_size=16)]
    naive = shapes[:1] if tiny else shapes[:3]
    rungs: tuple[tuple[Rung, list[Shape]], ...] = (("flash", shapes), ("naive", naive))
    for kernel, chosen in rungs:
        for shape in chosen:
            size = shape.cache_bytes + 2 * shape.query_bytes
            workspace = 4 * shape.batch * shape.kv_heads * shape.group * shape.queries * shape.length
            footprint = size + (workspace if kernel == "naive" else 0)
            flops = 4 * shape.pairs * shape.head_dim
            make = partial(prefill_subject, shape, kernel)
            yield Point(f"prefill {kernel}", shape.case, "gemm", 5e-3, size, flops, footprint, make)
