"""Drop tokens of a cache and close the gaps: `kv_compact` moves what stays, `release_blocks` moves nothing."""

from __future__ import annotations

import math

import torch

from . import checks
from .caches import Cache, PagedCache
from .launch import Kernel, capturing

THREADS = 256


def kernel(word_bytes: int) -> Kernel:
    """Moves words of 4, 8 or 16 bytes."""
    return Kernel("compact.cu", f"kv_compact<{word_bytes}>", THREADS)


def planes(cache: Cache) -> list[torch.Tensor]:
    """The tensors that hold the tokens of a cache."""
    return [cache.keys, cache.values] + ([] if cache.scales is None else [cache.scales])


def kv_compact(
    cache: Cache,
    keep: torch.Tensor,
    counts: torch.Tensor,
    *,
    block_table: torch.Tensor | None = None,
    check_contents: bool = True,
) -> None:
    """In place: token j of each sequence and KV head becomes its token keep[j]; what comes after is left as it is.

    keep int32 [sequences, kv heads, budget]: tokens that stay, rising, different for each head if need be (see
    reference/select.py). counts int32 [sequences]: how many of them count. The sequence's length is counts afterwards;
    a paged sequence can give back its blocks after the first ceil(counts / block size) (`spare_blocks`).
    block_table int32 [sequences, blocks a sequence], for a PagedCache: no block may be shared with another sequence.
    Moves keys, values and scales of any format.
    check_contents: look into keep, counts and block_table, which waits for the device; never done while a CUDA graph
    is captured. Raises ValueError in words before anything is launched.
    """
    checks.tensor("counts", counts, [None], (torch.int32,), cache.device, align=4)
    sequences = len(counts)
    checks.tensor("keep", keep, [sequences, cache.kv_heads, None], (torch.int32,), cache.device, align=4)
    width, shift, capacity = checks.addressing(cache, block_table, sequences)
    budget = keep.shape[2]
    if check_contents and not capturing(cache.device):
        compact_contents(cache, keep.cpu(), counts, block_table, capacity)
    for plane in planes(cache):
        row = plane.nbytes // max(1, plane.shape[0] * plane.shape[1] * cache.kv_heads)
        word = math.gcd(row, 16)
        grid = (cache.kv_heads, sequences)
        arguments = (plane, block_table, keep, counts, row // word, width, shift, budget)
        kernel(word).launch(grid, *arguments, device=cache.device)


def compact_contents(
    cache: Cache, keep: torch.Tensor, counts: torch.Tensor, block_table: torch.Tensor | None, capacity: int
) -> None:
    budget = keep.shape[2]
    here = counts.cpu()
    if bool(((here < 0) | (here > budget)).any()):
        raise ValueError(f"counts are {here.tolist()[:8]}; keep names 0 to {budget} tokens a sequence")
    counted = torch.arange(budget) < here[:, None, None]
    before = torch.cat([torch.full_like(keep[..., :1], -1), keep[..., :-1]], -1) if budget else keep
    if bool((counted & (keep <= before)).any()):
        raise ValueError("keep must rise along its last dimension, from 0 on")
    used = torch.where(counted, keep + 1, 0).amax((1, 2)) if budget else here
    checks.contents(cache, used, block_table, capacity, "the last token kept + 1")


def spare_blocks(
    block_table: torch.Tensor, lengths: torch.Tensor, counts: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Blocks, int32, that sequences of `lengths` tokens no longer need once `counts` of them are left at the front."""
    column = torch.arange(block_table.shape[1], device=block_table.device)[None, :]
    return block_table[(column * block_size >= counts[:, None]) & (column * block_size < lengths[:, None])]


def release_blocks(
    cache: PagedCache, block_table: torch.Tensor, lengths: torch.Tensor, sinks: int, recent: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sliding window with attention sinks on whole blocks: nothing is copied, blocks leave the table.

    A block goes if none of its tokens is among the first `sinks` or the last `recent`; so up to 2 (block size - 1)
    tokens more than asked for stay. Returns the new block_table (as wide, -1 where no block is), the new lengths
    (tokens still in the table) and the blocks released, int32.
    """
    size = cache.block_size
    if sinks < 0 or recent < 1:
        raise ValueError(f"a window needs sinks >= 0 and recent >= 1, not {sinks} and {recent}")
    checks.tensor("lengths", lengths, [None], (torch.int32,), cache.device, align=4)
    _, _, capacity = checks.addressing(cache, block_table, len(lengths))
    checks.contents(cache, lengths, block_table, capacity)
    column = torch.arange(block_table.shape[1], device=cache.device)[None, :]
    used = column * size < lengths[:, None]
    kept = used & ((column * size < sinks) | ((column + 1) * size > lengths[:, None] - recent))
    released = block_table[used & ~kept]
    order = torch.argsort((~kept).int(), dim=1, stable=True)
    table = torch.where(kept.gather(1, order), block_table.gather(1, order), -1)
    return table, lengths - ((used & ~kept).sum(1) * size).to(lengths.dtype), released
