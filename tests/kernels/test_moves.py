"""Compaction, block copies and ceilings, on the CPU runner."""

from __future__ import annotations

import pytest
import torch
from kvsim_kernels import ContiguousCache, PagedCache, ceilings
from kvsim_kernels.compact import kv_compact, release_blocks, spare_blocks
from kvsim_kernels.copy import kv_copy
from kvsim_kernels.grid import Case, moves

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", list(moves.cases(CPU, wide=True)), ids=lambda case: f"{case.kernel}: {case.case}")
def test_bytes_are_where_they_belong(case: Case) -> None:
    assert case.run() <= case.bound


def int32(*numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_compaction_of_the_same_tokens_changes_nothing() -> None:
    cache = ContiguousCache.zeros(1, 40, 1, 64)
    moves.filled(cache, 1)
    before = cache.keys.view(torch.int16).clone()
    kv_compact(cache, torch.arange(40, dtype=torch.int32).view(1, 1, 40), int32(40))
    assert torch.equal(cache.keys.view(torch.int16), before)


def test_offsets_past_two_to_the_31() -> None:
    """Into, and within, the last blocks of a cache of 2^31 numbers, of which only those blocks are ever touched."""
    small = PagedCache.zeros(4, 128, 16, 256)
    moves.filled(small, 5)
    blocks = 2**31 // small.keys[0].numel() + 8
    huge = PagedCache(*(torch.empty(blocks, 128, 16, 256, dtype=torch.bfloat16) for _ in range(2)))
    kv_copy(small, huge, torch.tensor([[i, blocks - 4 + i] for i in range(4)]))
    keep = (3 * torch.arange(100, dtype=torch.int32) + torch.arange(16, dtype=torch.int32)[:, None])[None]
    table = int32([2, 0, 3])
    kv_compact(small, keep, int32(100), block_table=table)
    kv_compact(huge, keep, int32(100), block_table=table + (blocks - 4))
    for have, want in ((huge.keys, small.keys), (huge.values, small.values)):
        assert torch.equal(have[blocks - 4 :].view(torch.int16), want.view(torch.int16))


def test_nothing_to_do_is_no_launch() -> None:
    cache, none = PagedCache.zeros(4, 16, 2, 64), torch.zeros(0, dtype=torch.int32)
    kv_compact(cache, none.view(0, 2, 0), none, block_table=none.view(0, 1))
    kv_compact(cache, none.view(1, 2, 0), int32(0), block_table=int32([0]))
    kv_copy(cache, cache, torch.zeros(0, 2, dtype=torch.int64))
    assert not cache.keys.any()


def test_spare_blocks_after_compaction() -> None:
    table = int32([4, 7, 1], [0, 2, -1], [3, -1, -1])
    spare = spare_blocks(table, lengths=int32(40, 32, 5), counts=int32(17, 0, 5), block_size=16)
    assert spare.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("length", "sinks", "recent", "kept"),
    [(80, 4, 20, [0, 3, 4]), (80, 0, 16, [4]), (80, 17, 1, [0, 1, 4]), (70, 4, 6, [0, 4]), (70, 4, 7, [0, 3, 4]),
     (33, 16, 16, [0, 1, 2]), (10, 4, 100, [0]), (0, 4, 8, [])],
)  # fmt: skip
def test_a_window_releases_whole_blocks(length: int, sinks: int, recent: int, kept: list[int]) -> None:
    cache = PagedCache.zeros(9, 16, 1, 64)
    blocks = [5, 3, 8, 1, 6]
    table, left, released = release_blocks(cache, int32(blocks), int32(length), sinks, recent)
    used = -(-length // 16)
    assert table.tolist() == [[blocks[i] for i in kept] + [-1] * (5 - len(kept))]
    assert sorted(released.tolist()) == sorted(set(blocks[:used]) - {blocks[i] for i in kept})
    assert left.tolist() == [length - 16 * (used - len(kept))]


def test_bad_compactions_are_refused_in_words() -> None:
    cache = PagedCache.zeros(4, 8, 1, 64)

    def refused(message: str, keep: torch.Tensor, counts: torch.Tensor, table: torch.Tensor | None) -> None:
        with pytest.raises(ValueError, match=message):
            kv_compact(cache, keep, counts, block_table=table)

    table = int32([0, 1])
    refused("keep must rise", int32([[3, 2]]), int32(2), table)
    refused("keep must rise", int32([[-1, 2]]), int32(2), table)
    refused(r"counts are \[3\]; keep names 0 to 2 tokens", int32([[1, 2]]), int32(3), table)
    refused("is 17; the table has room for 0 to 16", int32([[1, 16]]), int32(2), table)
    refused(r"block_table\[0, 1\] is 4; the cache has blocks 0 to 3", int32([[1, 9]]), int32(2), int32([0, 4]))
    refused(r"keep has shape \[1, 2, 2\]", int32([[1, 2], [1, 2]]), int32(2), table)
    refused("a PagedCache needs block_table", int32([[1, 2]]), int32(2), None)
    with pytest.raises(ValueError, match="sinks >= 0 and recent >= 1, not 4 and 0"):
        release_blocks(cache, table, int32(9), 4, 0)


def test_bad_copies_are_refused_in_words() -> None:
    cache, other = PagedCache.zeros(4, 8, 1, 64), PagedCache.zeros(4, 8, 2, 64)

    def refused(message: str, target: PagedCache, *pairs: tuple[int, int], dtype: torch.dtype = torch.int64) -> None:
        with pytest.raises(ValueError, match=message):
            kv_copy(cache, target, torch.tensor(pairs, dtype=dtype))

    refused("blocks of 8 bf16 tokens of 1 heads of 64 can't be copied to blocks of 8 bf16 .* 2 heads", other, (0, 1))
    refused(r"pairs\[1\] names source block 4; it has 0 to 3", cache, (0, 1), (4, 2))
    refused(r"pairs\[0\] names target block -1", cache, (0, -1))
    refused("pairs write some block twice", cache, (0, 1), (2, 1))
    refused("pairs read a block that they also write", cache, (0, 1), (1, 2))
    refused("pairs is torch.int32", cache, (0, 1), dtype=torch.int32)


def test_bad_ceilings_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="17 bytes, which is no multiple of 16"):
        ceilings.copy(torch.zeros(17, dtype=torch.uint8), torch.zeros(17, dtype=torch.uint8))
    with pytest.raises(ValueError, match="sums has 0 entries; 1 blocks write one each"):
        ceilings.read(torch.zeros(32, dtype=torch.uint8), torch.zeros(0, dtype=torch.int32))
