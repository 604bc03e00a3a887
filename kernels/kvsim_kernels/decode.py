"""Decode attention: one new token a sequence attends to the sequence's cached tokens.

For each sequence and query head: s_t = scale (q . k_t), p = softmax(s), out = sum over t of p_t v_t, over the
sequence's `lengths` first tokens. `group` neighbouring query heads share a KV head (GQA; 1: MHA, all: MQA).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as once
from math import e, log2
from typing import Literal

import torch

from . import checks
from .caches import HEAD_SIZES, INT4_GROUPS, Cache, Format
from .launch import Kernel, capturing, multiprocessors

Path = Literal["auto", "cuda-cores", "tensor-cores"]

STORED = {"int8": "signed char", "fp8": "fp8_t", "fp8_tensor": "fp8_t", "int4": "int4_t"}
TOKENS = 16  # that a warp folds at once on the tensor cores
BLOCKS_A_MULTIPROCESSOR = 2  # that the grid aims at: two blocks' rings of copies keep the memory busy
SHARED_BUDGET = 96 << 10  # bytes a block's rings may take: they fit every chip, and twice on those of 227 KiB


@dataclass(frozen=True)
class Plan:
    """How one decode is launched: the kernel, query heads a block, and tokens that a block folds in one turn."""

    kernel: Kernel
    heads: int
    tokens: int


def decode_attention(
    q: torch.Tensor,
    cache: Cache,
    lengths: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    scale: float | None = None,
    kernel: Path = "auto",
    splits: int | None = None,
    longest: int | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    check_contents: bool = True,
) -> torch.Tensor:
    """Attention of one query token a sequence over its cached tokens; a sequence of length 0 gets zeros.

    q: [sequences, heads, head_dim], bfloat16 or float16; heads is a multiple of the cache's kv_heads.
    cache: a ContiguousCache of as many sequences or a PagedCache; bf16 and fp16 caches have q's dtype.
    lengths: int32 [sequences], tokens to attend to, 0 to the capacity.
    block_table: int32 [sequences, blocks a sequence], for a PagedCache; entries past a sequence's length are not read.
    scale: of the scores; head_dim ** -0.5 by default.
    kernel: "cuda-cores", "tensor-cores", or "auto" (tensor cores: at every group size they leave memory the limit).
    splits: parts that each sequence is cut into, worked on at once; by default from the multiprocessors, the batch and
        `longest` (the longest length, if known; else the capacity).
    out: [sequences, heads, head_dim] like q, written and returned.
    lse: float32 [sequences, heads], filled, if given, with the natural log-sum-exp of the scaled scores (`kv_score`).
    workspace: float32, at least `workspace_size(...)` elements; needed, as `out`, while a CUDA graph is captured.
    check_contents: check lengths and block ids too, which waits for the device; not done while capturing.

    ValueError if an argument does not fit.
    """
    checks.tensor("q", q, [None, None, cache.head_dim], checks.FLOATS, cache.device)
    batch, heads, head_dim = q.shape
    if heads == 0 or heads % cache.kv_heads:
        raise ValueError(f"q has {heads} heads, which is no multiple of the cache's {cache.kv_heads} KV heads")
    if cache.format in ("bf16", "fp16") and cache.keys.dtype != q.dtype:
        raise ValueError(f"q is {q.dtype}, the cache {cache.keys.dtype}: they must be the same")
    checks.tensor("lengths", lengths, [batch], (torch.int32,), cache.device, align=4)
    width, shift, capacity = checks.addressing(cache, block_table, batch)
    group = heads // cache.kv_heads
    chosen = plan(q.dtype, cache.format, head_dim, group, cache.group, kernel)
    if splits is None:
        splits = split_count(chosen, batch, cache.kv_heads, group, longest or capacity, multiprocessors(q.device))
    elif splits < 1:
        raise ValueError(f"splits is {splits}; 1 or more is needed")

    busy = capturing(q.device)
    if busy and (out is None or (workspace is None and splits > 1)):
        raise ValueError("give `out` and `workspace` while a CUDA graph is captured: nothing is allocated then")
    if check_contents and not busy:
        checks.contents(cache, lengths, block_table, capacity)
    if out is None:
        out = torch.empty_like(q)
    checks.tensor("out", out, [batch, heads, head_dim], (q.dtype,), q.device)
    if lse is not None:
        checks.tensor("lse", lse, [batch, heads], (torch.float32,), q.device)
    part, split_lse = None, lse
    if splits > 1:
        size = workspace_size(batch, heads, head_dim, splits)
        if workspace is None:
            workspace = torch.empty(size, dtype=torch.float32, device=q.device)
        checks.tensor("workspace", workspace, [None], (torch.float32,), q.device)
        if workspace.numel() < size:
            raise ValueError(f"workspace has {workspace.numel()} elements; {size} are needed for {splits} splits")
        part, split_lse = workspace, workspace[batch * heads * splits * head_dim :]

    scale = head_dim**-0.5 if scale is None else scale
    base_2 = scale * cache.key_scale * log2(e)          # the kernels' softmax is in base 2
    grid = splits * -(-group // chosen.heads), cache.kv_heads, batch
    shape = width, shift, group, splits, base_2
    if chosen.kernel.name == "decode_cuda_cores":
        stored: tuple[torch.Tensor | None, ...] = cache.keys, cache.values
        rest: tuple[float, ...] = shape
    else:
        stored = cache.keys, cache.values, cache.scales
        rest = *shape, cache.value_scale
    chosen.kernel.launch(grid, out, part, split_lse, q, *stored, block_table, lengths, *rest, device=q.device)
    if splits > 1:
        merge(q.dtype, head_dim).launch((batch * heads,), out, part, split_lse, lse, splits, device=q.device)
    return out


def default_splits(q: torch.Tensor, cache: Cache, longest: int, kernel: Path = "auto") -> int:
    """The `splits` that `decode_attention` chooses for sequences of up to `longest` tokens."""
    group = q.shape[1] // cache.kv_heads
    chosen = plan(q.dtype, cache.format, cache.head_dim, group, cache.group, kernel)
    return split_count(chosen, q.shape[0], cache.kv_heads, group, longest, multiprocessors(q.device))


def workspace_size(batch: int, heads: int, head_dim: int, splits: int) -> int:
    """float32 elements that `decode_attention` needs for these shapes and this number of splits."""
    return batch * heads * splits * (head_dim + 1) if splits > 1 else 0


def split_count(chosen: Plan, batch: int, kv_heads: int, group: int, longest: int, multiprocessors: int) -> int:
    """Parts to cut each sequence into: the fewest that keep the multiprocessors nearly as busy as any number would.

    Busy is the share of block places filled, over all rounds of blocks; each warp gets four turns at least.
    """
    blocks = batch * kv_heads * -(-group // chosen.heads)
    places = BLOCKS_A_MULTIPROCESSOR * multiprocessors
    most = max(1, min(128, longest // (4 * chosen.tokens)))
    busy = [blocks * n / places / -(-blocks * n // places) for n in range(1, most + 1)] if blocks else [1.0]
    return next(n for n, share in enumerate(busy, 1) if share >= 0.85 * max(busy))


@once
def plan(dtype: torch.dtype, format: Format, head_dim: int, group: int, int4_group: int, path: Path) -> Plan:
    """The kernel for q's dtype, a cache format, a head size, query heads a KV head and channels a scale of int4."""
    if path not in ("auto", "cuda-cores", "tensor-cores"):
        raise ValueError(f"kernel is {path!r}; auto, cuda-cores or tensor-cores is needed")
    query = checks.CPP_TYPES[dtype]
    if path == "cuda-cores":
        if format in STORED:
            raise ValueError(f"a cache of format {format} is decoded on the tensor cores only")
        heads = 1 if group == 1 else 2 if head_dim == 256 else 4
        return Plan(Kernel("decode_cuda_cores.cu", f"decode_cuda_cores<{query}, {head_dim}, {heads}>", 128), heads, 16)
    heads = 16 if group > 8 and head_dim < 256 else 8  # 16 heads of 256 channels are too many registers
    bits = {"bf16": 16, "fp16": 16, "int4": 4}.get(format, 8)
    scales = {"int8": 4, "fp8": 4, "fp8_tensor": 4, "int4": head_dim // (int4_group or head_dim) * 8}.get(format, 0)
    tile = TOKENS * (2 * head_dim * bits // 8 + scales)
    warps = 4 if SHARED_BUDGET // (4 * tile) >= 3 else 2
    stages = min(8, SHARED_BUDGET // (warps * tile))
    groups = head_dim // int4_group if int4_group else 1
    group_sums = warps * heads * groups * 4 if int4_group else 0
    shared = max(warps * stages * tile + group_sums, warps * heads * (2 + groups + head_dim) * 4)
    types = f"{query}, {STORED.get(format, query)}, {head_dim}"
    expression = f"decode_tensor_cores<{types}, {heads}, {int4_group or head_dim}, {warps}, {stages}>"
    return Plan(Kernel("decode_tensor_cores.cu", expression, warps * 32, shared), heads, warps * TOKENS)


def merge(dtype: torch.dtype, head_dim: int) -> Kernel:
    """The kernel that adds up the splits."""
    return Kernel("decode_merge.cu", f"decode_merge<{checks.CPP_TYPES[dtype]}, {head_dim}>", head_dim)


def kernels() -> Iterator[Kernel]:
    """Every kernel that `decode_attention` can launch."""
    seen = set()
    for dtype in checks.FLOATS:
        own: Format = "bf16" if dtype == torch.bfloat16 else "fp16"
        for head_dim in HEAD_SIZES:
            stored: list[tuple[Format, int]] = [(own, 0), ("int8", 0), ("fp8", 0)]
            stored += [("int4", size) for size in INT4_GROUPS if head_dim % size == 0]
            for group in (1, 2, 16):  # one of each chunk of heads that is built
                seen.add(plan(dtype, own, head_dim, group, 0, "cuda-cores").kernel)
                seen |= {plan(dtype, format, head_dim, group, size, "tensor-cores").kernel for format, size in stored}
            seen.add(merge(dtype, head_dim))
    yield from sorted(seen, key=lambda kernel: kernel.expression)
