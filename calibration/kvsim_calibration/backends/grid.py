"""Which cases a calibration visits: the kernels of the models that the user names, denser where curves bend.

Level 0 is the least that gives every curve; each level after it halves the steps or adds a precision. Lengths and rows
go up by factors, since curves bend where a kernel stops being idle and where a cache is outgrown, and both lie at
unknown powers of two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvsim.cost.kernels import SCORE_BYTES, geometry
from kvsim.device import AttentionKey
from kvsim.device.forms import ACTIVATION_BYTES
from kvsim.errors import InputError
from kvsim.model import ModelSpec
from kvsim.precision import kv_bytes, row_bytes
from kvsim_calibration.backends.cases import Case, Values

LEVELS = 3


@dataclass(frozen=True, slots=True)
class Size:
    """How far the grid goes."""

    batch: int
    """most decoding sequences"""
    context: int
    """longest context"""
    chunk: int
    """longest prefill chunk"""
    cache_bytes: int
    """the most that a case's cache may take"""
    dtypes: tuple[str, ...]
    """of weights and activations, the main one first"""
    caches: tuple[str, ...] = ("int8", "fp8", "int4")
    """quantized KV formats"""
    quantized_prefill: bool = True
    """chunks can attend to quantized caches"""
    blocks: tuple[int, ...] = (16, 32, 128)
    """page sizes, the main one first"""
    devices: int = 1
    copies: int = 1 << 28
    """bytes of the largest copy"""


def cases(models: Sequence[ModelSpec], size: Size) -> list[Case]:
    """All cases, each once, by level. Raises InputError for a model without a kernel that can be measured."""
    found: dict[Case, int] = {}
    for model in models:
        groups = [group for group in model.attention_groups if not group.latent]
        if not groups:
            raise InputError(f"{model.name} has latent attention (MLA), for which there is no operator to measure yet")
        for case in _of(model, size):
            found[case] = min(found.get(case, LEVELS), case.level)
    for case in _ceilings(size):
        found[case] = 0
    ordered = sorted(found.items(), key=lambda pair: (pair[1], pair[0].family != "ceiling"))
    return [Case(case.family, case.values, level) for case, level in ordered]


def _of(model: ModelSpec, size: Size) -> Iterator[Case]:
    main = size.dtypes[0]
    kernels = geometry(model, weights_dtype=main, kv_dtype=main)
    keys = {_key(group.decode) for group in kernels.attention if not group.decode.latent}
    for heads, kv_heads, head_dim in sorted(keys):
        shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        yield from _attention(shape, size)
        yield from _cache_work(shape, size)
    for index, dtype in enumerate(size.dtypes):
        ops = geometry(model, weights_dtype=dtype, kv_dtype=main)
        for op in (*ops.linear, ops.head):
            yield from _linear(op.n, op.k, dtype, size.batch if op is ops.head else size.chunk + size.batch,
                               coarse_at=2 if index else 0)
    yield from _elementwise(model, size)
    yield from _steps(model, size)
    if size.devices > 1:
        for bytes_ in ladder(ACTIVATION_BYTES * model.hidden, ACTIVATION_BYTES * model.hidden * size.chunk, 4):
            yield Case("collective", {"gpus": size.devices, "bytes": bytes_}, 1)


def _key(key: AttentionKey) -> tuple[int, int, int]:
    return key.heads, key.kv_heads, key.head_dim


def ladder(low: int, high: int, step: float) -> list[int]:
    """low, low·step, low·step², … up to high, rounded, each once."""
    found, at = [], float(low)
    while at <= high:
        found.append(round(at))
        at *= step
    return sorted(set(found))


def _between(values: Sequence[int]) -> list[int]:
    """Half way between neighbours, rounded to multiples of 8 where they are far apart."""
    middles = [(a + b) // 2 for a, b in pairwise(values)]
    return [m // 8 * 8 if m >= 64 else m for m in middles]


def _contexts(low: int, most: int, step: float) -> list[int]:
    """What a chunk may come after: nothing, a ladder, and the most, the same for all chunks."""
    return sorted({0, *ladder(low, most, step), most})


def _attention(shape: Values, size: Size) -> Iterator[Case]:
    """Decode, prefill, both in one step, and unequal lengths."""
    main, page = size.dtypes[0], size.blocks[0]

    def key(dtype: str, block: int) -> Values:
        return {**shape, "kv_dtype": dtype, "window": 0, "block_size": block}

    coarse = [(n, x) for n in ladder(1, size.batch, 4) for x in ladder(16, size.context, 4)]
    fine = [(n, x) for n in ladder(1, size.batch, 2) for x in ladder(16, size.context, 2)]
    finest = [(n, x) for n in ladder(1, size.batch, 2) for x in _between(ladder(16, size.context, 2))]
    before = max(0, size.context - size.chunk)
    chunks = [(t, c) for t in ladder(8, size.chunk, 4) for c in _contexts(256, before, 4)]
    more = [(t, c) for t in ladder(8, size.chunk, 2) for c in _contexts(64, before, 2)]
    most = [(t, c) for t in _between(ladder(8, size.chunk, 2)) for c in _contexts(128, before, 4)]
    narrow = chunks if size.quantized_prefill else []
    steps = [(key(main, 0), (coarse, fine, finest), (chunks, more, most)),
             (key(main, page), (coarse, fine, finest), (chunks, more, most)),
             *((key(dtype, page), ((), coarse, fine), ((), narrow, ())) for dtype in size.caches),
             *((key(dtype, page), ((), (), coarse), ((), (), chunks)) for dtype in size.dtypes[1:]),
             *((key(main, block), ((), (), coarse), ((), (), ())) for block in size.blocks[1:])]
    for values, decode, prefill in steps:
        for level in range(LEVELS):
            yield from _decode(values, decode[level], level, size)
            yield from _prefill(values, prefill[level], level, size)
    yield from _fused(key(main, page), size)
    yield from _unequal(key(main, page), size)


def _bytes(values: Values) -> int:
    return kv_bytes(values["kv_dtype"], values["kv_heads"], values["head_dim"])


def _decode(values: Values, points: Iterable[tuple[int, int]], level: int, size: Size) -> Iterator[Case]:
    for n, length in points:
        if n * length * _bytes(values) <= size.cache_bytes:
            yield Case("decode", {**values, "n": n, "length": length, "attended": length}, level)


def _prefill(values: Values, points: Iterable[tuple[int, int]], level: int, size: Size) -> Iterator[Case]:
    for tokens, context in points:
        if (tokens + context) * _bytes(values) <= size.cache_bytes:
            yield Case("prefill", {**values, "chunks": 1, "tokens": tokens, "context": context}, level)


def _fused(values: Values, size: Size) -> Iterator[Case]:
    """A chunk and decoding sequences in one step; powers of two, as the table of fused ratios wants."""
    for tokens in ladder(32, size.chunk, 4):
        for context in (0, min(1024, size.context)):
            for n in ladder(1, size.batch, 4):
                for attended in ladder(64, size.context // 2, 16):
                    if (n * attended + context + tokens) * _bytes(values) <= size.cache_bytes:
                        yield Case("mixed", {**values, "tokens": tokens, "context": context, "n": n,
                                             "attended": attended}, 1)


def _unequal(values: Values, size: Size) -> Iterator[Case]:
    """One sequence longer than the others, which are equal."""
    for n in ladder(4, size.batch, 4):
        for mean in ladder(256, size.context // 2, 4):
            for times in (2, 4):
                longest = mean * times
                if longest <= size.context and times < n and n * longest * _bytes(values) <= size.cache_bytes:
                    yield Case("skew", {**values, "tokens": 0, "context": 0, "n": n, "mean": mean,
                                        "longest": longest}, 1)


def _cache_work(shape: Values, size: Size) -> Iterator[Case]:
    """Append, scores, compaction, copies and swaps of one layer's cache."""
    heads, dim, main = shape["kv_heads"], shape["head_dim"], size.dtypes[0]
    for dtype in (*size.dtypes, *size.caches):
        token = 2 * heads * dim * ACTIVATION_BYTES + kv_bytes(dtype, heads, dim)
        for level, tokens in _levels(1, size.chunk, first=0 if dtype == main else 1):
            yield Case("memory", {"op": "append", "dtype": dtype, "bytes": tokens * token, "m": tokens, **shape,
                                  "block_size": size.blocks[0]}, level)
    token = heads * (row_bytes(dim, main) + SCORE_BYTES)
    for level, tokens in _levels(64, size.context, first=1):
        yield Case("memory", {"op": "score", "dtype": main, "bytes": tokens * token, "m": tokens, **shape}, level)
    row = kv_bytes(main, heads, dim)
    most = max(1, min(size.copies, size.cache_bytes // 4, size.batch * size.context * row) // (16 * row))
    for what in ("blocks", "compact"):
        for level, blocks in _levels(1, most, first=1):
            yield Case("memory", {"op": "copy", "dtype": "bf16", "bytes": 2 * 16 * blocks * row, "m": blocks, **shape,
                                  "what": what}, level)
    for level, blocks in _levels(1, most, first=1):
        for way in ("out", "in"):
            yield Case("memory", {"op": "host_copy", "dtype": "bf16", "bytes": 16 * blocks * row, "m": blocks, **shape,
                                  "what": way}, level)


def _levels(low: int, high: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """(level, value): a coarse ladder at level `first`, finer ones after it."""
    for level, step in ((first, 8), (first + 1, 2)):
        if level < LEVELS:
            yield from ((level, value) for value in ladder(low, high, step))


def _linear(n: int, k: int, dtype: str, most: int, coarse_at: int) -> Iterator[Case]:
    coarse, fine = ladder(1, most, 4), ladder(1, most, 2)
    finest = sorted({*(_between(fine) if most > 2 else ()), *range(1, min(most, 17)), *range(32, min(most, 129), 16)})
    for level, rows in ((0, coarse), (1, fine), (2, finest)) if not coarse_at else ((coarse_at, fine),):
        yield from (Case("linear", {"dtype": dtype, "n": n, "k": k, "m": m}, level) for m in rows)


def _elementwise(model: ModelSpec, size: Size) -> Iterator[Case]:
    """Kernels of a layer that only move bytes; bytes as the simulator counts them, in 2-byte activations whatever the
    dtype here."""
    kernels = geometry(model, weights_dtype=size.dtypes[0], kv_dtype=size.dtypes[0])
    group = kernels.attention[0].decode
    shapes: dict[str, Values] = {
        "norm": {"hidden": model.hidden}, "embed": {"hidden": model.hidden, "vocab": model.vocab},
        "rope": {"heads": group.heads, "kv_heads": group.kv_heads, "head_dim": group.head_dim},
        "act": {"inter": model.inter}, "sample": {"vocab": model.vocab}}
    per_token = {op.op: op.bytes_per_token for op in kernels.memory if op.op in shapes}
    per_token["sample"] = kernels.sample_bytes_per_row
    for op, bytes_ in per_token.items():
        most = size.batch if op == "sample" else size.chunk + size.batch
        for level, m in _levels(1, most):
            yield Case("memory", {"op": op, "dtype": "bf16", "bytes": round(m * bytes_), "m": m, **shapes[op]}, level)


def _steps(model: ModelSpec, size: Size) -> Iterator[Case]:
    """Decode steps of a few whole layers: what they take beyond the sum of their kernels is the host's."""
    group = model.attention_groups[0]
    if not model.gated or model.moe or group.latent or group.window:  # not the architecture that the engine runs
        return
    shape: dict[str, Any] = {"hidden": model.hidden, "heads": group.heads, "kv_heads": group.kv_heads,
                             "head_dim": group.head_dim, "inter": model.inter, "dtype": size.dtypes[0]}
    for n in ladder(1, size.batch, 4):
        for length in ladder(64, min(size.context, 1024), 4):
            yield Case("step", {"n": n, "length": length, **shape}, 1)


def _ceilings(size: Size) -> Iterator[Case]:
    yield Case("ceiling", {"what": "launch"})
    for what in ("read", "copy"):
        yield Case("ceiling", {"what": what, "bytes": min(size.copies, size.cache_bytes)})
    for dtype in size.dtypes:
        yield Case("ceiling", {"what": "gemm", "dtype": dtype, "side": 512 if size.chunk < 2048 else 8192})
