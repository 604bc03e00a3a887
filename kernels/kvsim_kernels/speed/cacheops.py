"""Append, scores, compaction and block copies as points."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from ..append import kv_append
from ..caches import Format, PagedCache
from ..compact import kv_compact, planes
from ..copy import kv_copy
from ..decode import decode_attention
from ..grid import relative_error
from ..grid.append import unequal
from ..prefill import prefill_attention
from ..reference import cache as held
from ..reference import score as reference
from ..reference.quantize import quantize
from ..score import kv_score
from .attention import Shape, filled, piece
from .limits import normal
from .points import Ceiling, Point, Subject

FORMATS: tuple[Format, ...] = ("bf16", "int8", "fp8", "fp8_tensor", "int4")
PLACES = {"device": "within the device", "out": "to pinned host memory", "in": "from pinned host memory"}


def append_subject(shape: Shape, device: torch.device, seed: int) -> Subject:
    """One token for each sequence, or a chunk of one: each to a random row of the cache."""
    cache, _ = filled(shape, device, seed)
    tokens = shape.batch
    keys, values = (normal((tokens, shape.kv_heads, shape.head_dim), device, seed + i) for i in (1, 2))
    rows = cache.keys.shape[0] * cache.keys.shape[1]
    slots = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))[:tokens].to(device)

    def error() -> float:
        """Numbers of the last token that are not as the reference stores them."""
        at, wrong = int(slots[-1]), 0
        sides = ((keys, cache.keys, cache.key_scale), (values, cache.values, cache.value_scale))
        for side, (given, tensor, scale) in enumerate(sides):
            stored, x = tensor.flatten(0, 1)[at].cpu(), given[-1].cpu()
            if shape.format == "bf16":
                wrong += unequal(stored, x)
                continue
            codes, scales = quantize(x.float().numpy(), shape.format, group=shape.int4_group, tensor_scale=scale)
            wrong += int((stored.view(torch.uint8).numpy() != codes.view(np.uint8)).sum())
            if scales is not None and cache.scales is not None:
                wrong += unequal(cache.scales.flatten(0, 1)[at, :, side].cpu(), torch.from_numpy(scales))
        return float(wrong)

    return Subject(lambda: kv_append(keys, values, cache, slots, check_contents=False), error)


def score_subject(shape: Shape, device: torch.device, seed: int) -> Subject:
    cache, table = filled(shape, device, seed)
    q = normal((shape.batch * shape.queries, shape.kv_heads * shape.group, shape.head_dim), device, seed + 1)
    lengths = torch.full((shape.batch,), shape.length, dtype=torch.int32, device=device)
    starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * shape.queries
    lse = torch.empty(q.shape[:2], device=device)
    if shape.queries == 1:
        decode_attention(q, cache, lengths, block_table=table, lse=lse)
    else:
        prefill_attention(q, cache, lengths, starts, block_table=table, lse=lse, most_queries=shape.queries)
    capacity = -(-shape.length // (shape.block_size or 1)) * (shape.block_size or 1)
    scores = torch.zeros(shape.batch, shape.kv_heads, capacity, device=device)

    def error() -> float:
        """Scores add up from launch to launch, so their shares are compared."""
        keys, _ = held.numbers(piece(shape, cache, table))
        last = q[-shape.queries :, : shape.group].double().cpu()
        want = reference.kv_score(last, keys, [0, shape.queries], [shape.length], shape.head_dim**-0.5)[0, 0]
        got = scores[-1, 0, : shape.length].double().cpu().numpy()
        return relative_error(got / got.sum(), want / want.sum())

    launch = partial(kv_score, q, lse, cache, lengths, starts, scores, block_table=table, check_contents=False)
    return Subject(launch, error)


def compact_subject(shape: Shape, budget: int, device: torch.device, seed: int) -> Subject:
    """Random tokens stay. Launched again, the same indices move the tokens that are there then."""
    cache, table = filled(shape, device, seed)
    random = torch.Generator(device).manual_seed(seed)
    order = torch.rand(shape.batch, shape.kv_heads, shape.length, device=device, generator=random).argsort(-1)
    keep = order[..., :budget].sort(-1)[0].int()
    counts = torch.full((shape.batch,), budget, dtype=torch.int32, device=device)
    before = held.numbers(piece(shape, cache, table))

    launch = partial(kv_compact, cache, keep, counts, block_table=table, check_contents=False)

    def error() -> float:
        """Launched until nothing moves, token j is the one that following keep from j ends at."""
        at, steps = np.arange(budget), keep[-1, 0].cpu().numpy()
        while True:
            after = np.where(at < budget, steps[np.minimum(at, budget - 1)], at)
            if np.array_equal(after, at):
                break
            at = after
            launch()
        now = held.numbers(piece(shape, cache, table))
        return sum(float((new[0, :budget] != old[0, at]).any()) for new, old in zip(now, before, strict=True))

    return Subject(launch, error)


def copy_subject(shape: Shape, blocks: int, where: str, device: torch.device, seed: int) -> Subject:
    """where: "device" within a cache, "out" to pinned host memory, "in" from it."""
    cache, _ = filled(shape, device, seed)
    assert isinstance(cache, PagedCache)
    source, target = cache, cache
    if where != "device":
        pinned = PagedCache(on_host(cache.keys), on_host(cache.values))
        source, target = (cache, pinned) if where == "out" else (pinned, cache)
    order = torch.randperm(cache.blocks, generator=torch.Generator().manual_seed(seed))
    old, new = order[:blocks], order[blocks : 2 * blocks]
    pairs = torch.stack([old, new], -1).to(device)

    def error() -> float:
        same = [torch.equal(a.cpu()[old], b.cpu()[new]) for a, b in zip(planes(source), planes(target), strict=True)]
        return float(not all(same))

    return Subject(partial(kv_copy, source, target, pairs, check_contents=False), error)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of the host that the device can reach."""
    return tensor.cpu().pin_memory() if tensor.device.type == "cuda" else tensor.clone()


def points(tiny: bool) -> Iterator[Point]:
    heads = 1 if tiny else 8
    for tokens, format in itertools.product((3,) if tiny else (1, 64, 8192), FORMATS):
        shape = Shape(tokens, 16, kv_heads=heads, format=format, block_size=16)
        size = tokens * heads * shape.head_dim * 4 + shape.cache_bytes // 16
        case = f"{tokens} tokens to {format}, {heads} heads of {shape.head_dim}"
        yield Point("kv_append", case, "copy", 0.0, size, 0, size, partial(append_subject, shape))

    scored = [Shape(64, 8192, block_size=16), Shape(1, 2048, 2048)]
    for shape in [Shape(2, 70, 3, kv_heads=1, block_size=16)] if tiny else scored:
        size = shape.cache_bytes // 2 + shape.query_bytes + 8 * shape.batch * shape.length * shape.kv_heads
        ceiling: Ceiling = "read" if shape.queries == 1 else "gemm"
        flops = 2 * shape.pairs * shape.head_dim
        yield Point("kv_score", shape.case, ceiling, 1e-2, size, flops, size, partial(score_subject, shape))

    batch, length = (2, 40) if tiny else (16, 8192)
    for block_size in (0, 16):
        shape, budget = Shape(batch, length, kv_heads=heads, block_size=block_size), length // 4
        make = partial(compact_subject, shape, budget)
        size = shape.cache_bytes // 2  # a quarter is read and written
        yield Point("kv_compact", f"{shape.case}, {budget} kept", "copy", 0.0, size, 0, shape.cache_bytes, make)

    blocks = 2 if tiny else 1024
    shape = Shape(2 * blocks, 16, kv_heads=heads, block_size=16)
    for where, words in PLACES.items():
        size = shape.cache_bytes // 2 * (2 if where == "device" else 1)
        ceiling = "copy" if where == "device" else "link"
        case = f"{blocks} blocks of 16, {heads} heads of {shape.head_dim}, {words}"
        make = partial(copy_subject, shape, blocks, where)
        yield Point("kv_copy", case, ceiling, 0.0, size, 0, shape.cache_bytes, make)
