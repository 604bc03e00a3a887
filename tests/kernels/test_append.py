"""Appending to caches of every format, on the CPU runner."""

from __future__ import annotations

import pytest
import torch
from kvsim_kernels import Cache, ContiguousCache, PagedCache
from kvsim_kernels.append import kv_append, slots_of
from kvsim_kernels.grid import Case, append
from kvsim_kernels.sample import batch

CPU = torch.device("cpu")
BF16 = torch.bfloat16


@pytest.mark.parametrize("case", list(append.cases(CPU, wide=False)), ids=lambda case: f"{case.kernel}: {case.case}")
def test_stores_the_bits_of_the_reference(case: Case) -> None:
    assert case.run() <= case.bound


@pytest.mark.slow
def test_the_wide_grid_stores_the_bits_of_the_reference() -> None:
    assert [case.case for case in append.cases(CPU, wide=True) if not case.run() <= case.bound] == []


@pytest.mark.parametrize("block_size", [0, 16])
def test_chunks_go_where_attention_looks_for_them(block_size: int) -> None:
    """Append every sequence's tokens in two steps to an empty cache: the cache is the one they came from."""
    lengths = [40, 1, 0, 17]
    full = batch(lengths, lengths, kv_heads=2, group=1, head_dim=64, dtype=BF16, block_size=block_size)
    lead, table = full.cache.keys.shape, full.block_table
    cache = type(full.cache)(torch.full(lead, torch.nan, dtype=BF16), torch.full(lead, torch.nan, dtype=BF16))
    first = [length // 2 for length in lengths]
    for done, upto in (([0] * 4, first), (first, lengths)):
        keys, values = (
            torch.cat([torch.from_numpy(x[b, done[b] : upto[b]]) for b in range(4)]).to(BF16)
            for x in (full.keys, full.values)
        )
        starts = torch.tensor([0, *torch.tensor([b - a for a, b in zip(done, upto, strict=True)]).cumsum(0)])
        slots = slots_of(cache, torch.tensor(upto, dtype=torch.int32), starts.int(), table)
        kv_append(keys, values, cache, slots)
    assert torch.equal(cache.keys.nan_to_num(9), full.cache.keys.nan_to_num(9))
    assert torch.equal(cache.values.nan_to_num(9), full.cache.values.nan_to_num(9))


def test_slots_past_two_to_the_31_numbers() -> None:
    rows = 2**31 // (8 * 256) + 8
    cache = PagedCache(*(torch.empty(rows // 8, 8, 8, 256, dtype=BF16) for _ in range(2)))
    x = torch.randn(1, 8, 256).to(BF16)
    kv_append(x, 2 * x, cache, torch.tensor([rows - 1]))
    assert torch.equal(cache.keys[-1, -1], x[0])
    assert torch.equal(cache.values[-1, -1], 2 * x[0])


def test_bad_input_is_refused_in_words() -> None:
    x, slots = torch.zeros(3, 2, 64, dtype=BF16), torch.tensor([0, 1, 2])
    plain, quantized = ContiguousCache.zeros(2, 4, 2, 64), PagedCache.zeros(2, 8, 2, 64, "int8")

    def refused(message: str, keys: torch.Tensor, cache: Cache, slots: torch.Tensor = slots) -> None:
        with pytest.raises(ValueError, match=message):
            kv_append(keys, x, cache, slots)

    refused("keys is torch.float16; torch.bfloat16 is needed", x.half(), plain)
    refused("keys is torch.float32; torch.bfloat16 or torch.float16 is needed", x.float(), quantized)
    refused("values is torch.bfloat16; torch.float16 is needed", x.half(), quantized)
    refused(r"keys has shape \[3, 1, 64\]", x[:, :1].contiguous(), plain)
    refused(r"slots\[1\] is 8; the cache has rows 0 to 7", x, plain, torch.tensor([7, 8, 0]))
    refused("slots is torch.int32", x, plain, slots.int())
    refused(r"slots has shape \[2\]", x, plain, slots[:2])
    starts = torch.tensor([0, 1, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"lengths\[1\] is 5; the table has room for 0 to 4 tokens"):
        slots_of(plain, torch.tensor([1, 5], dtype=torch.int32), starts)
    for wrong in ([1, 1, 3], [0, 3, 1]):
        with pytest.raises(ValueError, match=r"query_starts must rise from 0, not as \["):
            slots_of(plain, torch.tensor([3, 3], dtype=torch.int32), torch.tensor(wrong, dtype=torch.int32))
    with pytest.raises(ValueError, match="more queries than lengths gives it tokens"):
        slots_of(plain, torch.tensor([1, 1], dtype=torch.int32), starts)
