"""Copy blocks between caches: copy-on-write, defragmentation, swap to pinned host memory: `kv_copy`."""

from __future__ import annotations

import ctypes

import torch

from . import checks
from .caches import PagedCache
from .compact import planes
from .launch import Kernel, capturing

THREADS, DEPTH = 256, 4
KERNEL = Kernel("copy.cu", "kv_copy", THREADS)


def kv_copy(source: PagedCache, target: PagedCache, pairs: torch.Tensor, *, check_contents: bool = True) -> None:
    """Block pairs[i, 0] of `source` is copied to block pairs[i, 1] of `target`, all at once.

    source, target: PagedCaches alike but for the number of blocks; they may be the same one, and one of them may be in
    pinned host memory, which the device then reads or writes over its link. pairs int64 [n, 2] on the device that runs
    the kernel: the target's unless that is host memory. No block may be written twice, or written and read.
    check_contents: look into pairs, which waits for the device; never done while a CUDA graph is captured.
    Raises ValueError in words before anything is launched.
    """
    if (source.format, source.group, source.keys.shape[1:]) != (target.format, target.group, target.keys.shape[1:]):
        raise ValueError(f"blocks of {described(source)} can't be copied to blocks of {described(target)}")
    device = target.device if target.device.type == "cuda" else source.device
    for name, cache in (("source", source), ("target", target)):
        if cache.device != device and not (cache.device.type == "cpu" and cache.keys.is_pinned()):
            raise ValueError(f"{name} is on {cache.device}: it must be on {device} or in pinned host memory")
    checks.tensor("pairs", pairs, [None, 2], (torch.int64,), device, align=8)
    if check_contents and not capturing(device):
        pairs_contents(source, target, pairs.cpu())
    for old, new in zip(planes(source), planes(target), strict=True):
        words = old[0].nbytes // 16 if len(old) else 0
        grid = (len(pairs), -(-words // (THREADS * DEPTH)))
        KERNEL.launch(grid, new, old, pairs, ctypes.c_int64(words), device=device)


def described(cache: PagedCache) -> str:
    return f"{cache.block_size} {cache.format} tokens of {cache.kv_heads} heads of {cache.head_dim}"


def pairs_contents(source: PagedCache, target: PagedCache, pairs: torch.Tensor) -> None:
    for column, (name, cache) in enumerate((("source", source), ("target", target))):
        bad = torch.nonzero((pairs[:, column] < 0) | (pairs[:, column] >= cache.blocks))
        if len(bad):
            at = int(bad[0])
            raise ValueError(f"pairs[{at}] names {name} block {int(pairs[at, column])}; it has 0 to {cache.blocks - 1}")
    written = pairs[:, 1]
    if len(set(written.tolist())) < len(written):
        raise ValueError("pairs write some block twice")
    if source.keys.data_ptr() == target.keys.data_ptr() and bool(torch.isin(pairs[:, 0], written).any()):
        raise ValueError("pairs read a block that they also write: copy in two calls")
