"""Checks of arguments before a launch: a Python error in words, never a crash on the device.

Shapes, dtypes and devices cost nothing to check. Contents (lengths, block ids, slots) must be read back from the
device, which waits for it: callers do it by default, skip it when asked to, and cannot do it while capturing a graph.
"""

from __future__ import annotations

import torch

from .caches import Cache, ContiguousCache, PagedCache, same

FLOATS = (torch.bfloat16, torch.float16)
CPP_TYPES = {torch.bfloat16: "bf16_t", torch.float16: "half_t", torch.float32: "float"}


def tensor(
    name: str,
    given: torch.Tensor,
    shape: list[int | None],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    *,
    align: int = 16,
) -> None:
    """ValueError unless `given` has this shape (None: any size), one of these dtypes, is on `device` and contiguous."""
    if not isinstance(given, torch.Tensor):
        raise ValueError(f"{name} is a {type(given).__name__}, not a torch tensor")
    sizes = list(given.shape)
    if len(sizes) != len(shape) or any(want not in (None, have) for want, have in zip(shape, sizes, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {sizes}; [{wanted}] is needed")
    if given.dtype not in dtypes:
        raise ValueError(f"{name} is {given.dtype}; {' or '.join(map(str, dtypes))} is needed")
    if given.device != device:
        raise ValueError(f"{name} is on {given.device}, the other tensors are on {device}")
    if not given.is_contiguous():
        raise ValueError(f"{name} is not contiguous (call .contiguous())")
    if given.data_ptr() % align:
        raise ValueError(f"{name} starts at an address that is no multiple of {align}")


def addressing(cache: Cache, block_table: torch.Tensor | None, batch: int) -> tuple[int, int, int]:
    """(width, shift, capacity) with which the kernels' `cache_row` finds a token; checks the block table's form.

    width: block-table entries a sequence, or the capacity of a contiguous cache; shift: log2 of the block size (0 if
    contiguous); capacity: tokens a sequence can have.
    """
    if isinstance(cache, PagedCache):
        if block_table is None:
            raise ValueError("a PagedCache needs block_table [batch, blocks a sequence]")
        tensor("block_table", block_table, [batch, None], (torch.int32,), cache.device, align=4)
        return block_table.shape[1], cache.block_size.bit_length() - 1, block_table.shape[1] * cache.block_size
    if not isinstance(cache, ContiguousCache):
        raise ValueError(f"cache is a {type(cache).__name__}; a ContiguousCache or a PagedCache is needed")
    if block_table is not None:
        raise ValueError("a ContiguousCache takes no block_table")
    if cache.keys.shape[0] != batch:
        raise ValueError(f"the cache holds {cache.keys.shape[0]} sequences, the batch has {batch}")
    return cache.capacity, 0, cache.capacity


def contents(
    cache: Cache, lengths: torch.Tensor, block_table: torch.Tensor | None, capacity: int, name: str = "lengths"
) -> None:
    """ValueError unless 0 <= lengths <= capacity and every block that holds one of these tokens exists.

    Reads the tensors back from the device, so it waits for it.
    """
    here = lengths.cpu()
    if here.numel() and (int(here.min()) < 0 or int(here.max()) > capacity):
        at = int(torch.nonzero((here < 0) | (here > capacity))[0])
        raise ValueError(f"{name}[{at}] is {int(here[at])}; the table has room for 0 to {capacity} tokens")
    if isinstance(cache, PagedCache) and block_table is not None:
        table = block_table.cpu()
        used = torch.arange(table.shape[1])[None, :] * cache.block_size < here[:, None]
        bad = used & ((table < 0) | (table >= cache.blocks))
        if bool(bad.any()):
            row, column = (int(x) for x in torch.nonzero(bad)[0])
            what = f"block_table[{row}, {column}] is {int(table[row, column])}"
            raise ValueError(f"{what}; the cache has blocks 0 to {cache.blocks - 1}")


__all__ = ["CPP_TYPES", "FLOATS", "addressing", "contents", "same", "tensor"]
