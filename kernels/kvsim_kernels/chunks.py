"""A batch of chunks of queries over a cache, checked: what prefill attention and scoring have in common."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import checks
from .caches import Cache
from .launch import capturing


@dataclass(frozen=True)
class Chunks:
    """Arguments of a kernel, in the units it wants them."""

    sequences: int
    group: int  # query heads a KV head
    width: int  # see checks.addressing
    shift: int
    capacity: int  # tokens a sequence can have
    most_queries: int
    scale: float


def checked(
    q: torch.Tensor,
    cache: Cache,
    lengths: torch.Tensor,
    query_starts: torch.Tensor,
    block_table: torch.Tensor | None,
    scale: float | None,
    most_queries: int | None,
    check_contents: bool,
) -> Chunks:
    """ValueError for what the kernels could not run; shapes as in `prefill_attention`.

    Contents of tensors are looked at when `check_contents` is set and no CUDA graph is being captured.
    """
    if cache.keys.dtype not in checks.FLOATS:
        raise ValueError(f"the cache is {cache.format}; chunks of queries read bf16 and fp16 caches only")
    checks.tensor("q", q, [None, None, cache.head_dim], (cache.keys.dtype,), cache.device)
    if not q.shape[1] or q.shape[1] % cache.kv_heads:
        raise ValueError(f"{q.shape[1]} query heads are no multiple of {cache.kv_heads} KV heads")
    checks.tensor("lengths", lengths, [None], (torch.int32,), cache.device, align=4)
    sequences = len(lengths)
    checks.tensor("query_starts", query_starts, [sequences + 1], (torch.int32,), cache.device, align=4)
    width, shift, capacity = checks.addressing(cache, block_table, sequences)
    graph = capturing(cache.device)
    if most_queries is None:
        if graph:
            raise ValueError("most_queries must be given while a CUDA graph is captured")
        most_queries = int(query_starts.diff().max()) if sequences else 0
    if check_contents and not graph:
        checks.contents(cache, lengths, block_table, capacity)
        chunk_contents(len(q), lengths.cpu(), query_starts.cpu(), most_queries)
    scale = float(cache.head_dim) ** -0.5 if scale is None else float(scale)
    return Chunks(sequences, q.shape[1] // cache.kv_heads, width, shift, capacity, most_queries, scale)


def chunk_contents(tokens: int, lengths: torch.Tensor, starts: torch.Tensor, most_queries: int) -> None:
    queries = starts.diff()
    if int(starts[0]) != 0 or int(starts[-1]) != tokens or bool((queries < 0).any()):
        raise ValueError(f"query_starts must rise from 0 to the {tokens} tokens of q, not as {starts.tolist()[:8]} …")
    bad = torch.nonzero((queries > lengths) | (queries > most_queries))
    if len(bad):
        at = int(bad[0])
        limit = f"its length is {int(lengths[at])}, most_queries is {most_queries}"
        raise ValueError(f"sequence {at} has {int(queries[at])} queries, but {limit}")
