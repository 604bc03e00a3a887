"""Write the keys and values of new tokens into a cache, quantizing them if the cache is quantized: `kv_append`."""

from __future__ import annotations

import torch

from . import checks
from .caches import Cache, ContiguousCache
from .launch import Kernel, capturing

THREADS = 128
PLAIN = Kernel("append.cu", "kv_append", THREADS)
CODES = {torch.int8: "signed char", torch.float8_e4m3fn: "fp8_t"}


def scaled_kernel(codes: torch.dtype, dtype: torch.dtype, head_dim: int) -> Kernel:
    """int8 and fp8; `dtype` of the new keys and values."""
    expression = f"kv_append_scaled<{CODES[codes]}, {checks.CPP_TYPES[dtype]}, {head_dim}>"
    return Kernel("append_quantized.cu", expression, THREADS)


def int4_kernel(dtype: torch.dtype, head_dim: int, group: int) -> Kernel:
    return Kernel("append_quantized.cu", f"kv_append_int4<{checks.CPP_TYPES[dtype]}, {head_dim}, {group}>", THREADS)


def lanes(codes: int) -> int:
    """Threads that share a head, where a thread makes 16 bytes and the head has `codes` bytes: a power of two."""
    return 1 << (codes // 16 - 1).bit_length()


def kv_append(
    keys: torch.Tensor, values: torch.Tensor, cache: Cache, slots: torch.Tensor, *, check_contents: bool = True
) -> None:
    """Store token i's keys[i] and values[i] in row slots[i] of the cache; nowhere if slots[i] is negative (padding).

    keys, values [tokens, kv heads, head size], bf16 or fp16: of the cache's dtype, or any of the two if it quantizes
    (int8, fp8: scale = max |x| / 127 or 448 for each token and head; int4: scale and zero from the least and greatest
    number of each group; fp8_tensor: the cache's key_scale and value_scale; see reference/quantize.py).
    slots int64 [tokens]: sequence * capacity + position, or block * block size + offset; `slots_of` makes them. No
    two tokens may share a slot.
    check_contents: look for slots past the end, which waits for the device; never done while a CUDA graph is captured.
    Raises ValueError in words before anything is launched.
    """
    plain = cache.keys.dtype in checks.FLOATS
    shape = [None, cache.kv_heads, cache.head_dim]
    checks.tensor("keys", keys, [*shape], (cache.keys.dtype,) if plain else checks.FLOATS, cache.device)
    checks.tensor("values", values, list(keys.shape), (keys.dtype,), cache.device)
    tokens = len(keys)
    checks.tensor("slots", slots, [tokens], (torch.int64,), cache.device, align=8)
    rows = cache.keys.shape[0] * cache.keys.shape[1]
    if check_contents and not capturing(cache.device) and tokens and int(slots.max()) >= rows:
        at = int(slots.argmax())
        raise ValueError(f"slots[{at}] is {int(slots[at])}; the cache has rows 0 to {rows - 1}")

    heads = tokens * cache.kv_heads
    given = (keys, values, slots)
    if plain:
        words = cache.kv_heads * cache.head_dim * keys.itemsize // 16
        grid = (-(-tokens * words // THREADS), 2)
        PLAIN.launch(grid, cache.keys, cache.values, *given, words, tokens * words, device=cache.device)
        return
    share = THREADS // lanes(cache.keys.shape[3])
    grid = (-(-heads // share), 2)
    head = (cache.keys, cache.values, cache.scales, *given, heads, cache.kv_heads)
    if cache.format == "int4":
        int4_kernel(keys.dtype, cache.head_dim, cache.group).launch(grid, *head, device=cache.device)
    else:
        scaled = scaled_kernel(cache.keys.dtype, keys.dtype, cache.head_dim)
        scaled.launch(grid, *head, float(cache.key_scale), float(cache.value_scale), device=cache.device)


def slots_of(
    cache: Cache, lengths: torch.Tensor, query_starts: torch.Tensor, block_table: torch.Tensor | None = None
) -> torch.Tensor:
    """Slots int64 [tokens] of a batch of chunks, which are the last tokens of each sequence (see `prefill_attention`).

    lengths int32 [sequences] count the chunk; query_starts int32 [sequences + 1]; block_table int32 [sequences, blocks
    a sequence] for a PagedCache. Waits for the device. ValueError for lengths or blocks that the cache has no room for.
    """
    checks.tensor("lengths", lengths, [None], (torch.int32,), cache.device, align=4)
    checks.tensor("query_starts", query_starts, [len(lengths) + 1], (torch.int32,), cache.device, align=4)
    width, shift, capacity = checks.addressing(cache, block_table, len(lengths))
    checks.contents(cache, lengths, block_table, capacity)
    queries = query_starts.diff().long()
    if int(query_starts[0]) != 0 or bool((queries < 0).any()):
        raise ValueError(f"query_starts must rise from 0, not as {query_starts.tolist()[:8]}")
    sequence = torch.repeat_interleave(torch.arange(len(lengths), device=cache.device), queries)
    tokens = torch.arange(len(sequence), device=cache.device)
    position = tokens - query_starts[1:].long()[sequence] + lengths.long()[sequence]
    if len(position) and int(position.min()) < 0:
        raise ValueError("query_starts give some sequence more queries than lengths gives it tokens")
    if isinstance(cache, ContiguousCache) or block_table is None:
        return sequence * width + position
    block = block_table.long()[sequence, position >> shift]
    return (block << shift) + (position & (1 << shift) - 1)
