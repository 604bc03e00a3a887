"""Blocks in host memory: extents against a list of single blocks, and what a cache with a host tier makes of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.base import Sequence
from kvsim.cache.host_blocks import HostBlocks
from kvsim.cache.prefix import PrefixPaged
from kvsim.cache.tier import Tier
from kvsim.cache.tiered import Tiered

IDS = 4


class NaiveBlocks:
    """Single blocks, the one unused for longest first."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int]] = []

    def use(self, id: int, lo: int, hi: int) -> int:
        before = len(self.order)
        for block in range(lo, hi):
            if (id, block) in self.order:
                self.order.remove((id, block))
            self.order.append((id, block))
        return len(self.order) - before

    def drop(self, blocks: int) -> None:
        del self.order[:blocks]


def same(blocks: HostBlocks, naive: NaiveBlocks, most: int) -> None:
    """The same blocks, seen from outside: how far each content is there from each place on."""
    assert blocks.count == len(naive.order)
    held = set(naive.order)
    for id in range(IDS):
        gap = most
        for at in range(most, -1, -1):
            gap = gap if (id, at) in held else at
            assert blocks.reach(id, at, most) == gap, (id, at)


def walk(seed: int, operations: int, most: int, longest: int, every: int) -> None:
    """Random uses and drops of blocks below `most`, up to `longest` at once; then everything goes, in order."""
    rng, blocks, naive = random.Random(seed), HostBlocks(), NaiveBlocks()
    for count in range(operations):
        if rng.random() < 0.75:
            id, lo = rng.randrange(IDS), rng.randrange(most)
            hi = min(most, lo + rng.randint(1, longest))
            assert blocks.use(id, lo, hi) == naive.use(id, lo, hi)
        else:
            gone = rng.randint(0, min(2 * longest, blocks.count))
            blocks.drop(gone)
            naive.drop(gone)
        if count % every == 0:
            blocks.check()
            same(blocks, naive, most)
    while blocks.count:
        blocks.drop(1)
        naive.drop(1)
        if blocks.count % (3 * every) == 0:
            same(blocks, naive, most)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 20), st.integers(1, 20))
def test_extents_equal_blocks_after_every_operation(seed: int, most: int, longest: int) -> None:
    walk(seed, 40, most, longest, every=1)


@pytest.mark.parametrize("longest", [3, 40])
def test_extents_equal_blocks_long(longest: int) -> None:
    walk(longest, 4_000, 100, longest, every=50)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(1, 12))))
def test_what_was_used_last_goes_last(uses: list[tuple[int, int, int]]) -> None:
    """Any uses: dropped one by one, blocks go in the order of their latest use."""
    blocks, naive = HostBlocks(), NaiveBlocks()
    for id, lo, count in uses:
        assert blocks.use(id, lo, lo + count) == naive.use(id, lo, lo + count)
        blocks.check()
    for id, block in naive.order:
        assert blocks.reach(id, block, block + 1) == block + 1
        blocks.drop(1)
        assert blocks.reach(id, block, block + 1) == block
    assert blocks.count == 0


def test_neighbours_used_one_after_the_other_are_one_extent() -> None:
    """The cost is one of extents: a hundred thousand blocks brought in ascending or wanted again at once are one."""
    blocks = HostBlocks()
    for at in range(0, 100_000, 10):
        assert blocks.use(7, at, at + 10) == 10
    assert blocks.use(7, 0, 100_000) == 0
    assert blocks.reach(7, 3, 1 << 40) == 100_000 and blocks.reach(7, 3, 50) == 50
    blocks.drop(99_999)
    assert blocks.reach(7, 0, 1) == 0 and blocks.reach(7, 99_999, 1 << 40) == 100_000


def test_the_host_forgets_what_was_not_wanted_for_longest() -> None:
    """A device of 4 blocks before a host of 8: the content that is fetched again outlives the one that is not."""
    kv = Tiered(PrefixPaged(blocks=4, block_size=4, token_bytes=1), Tier(8 * 4), swap=False)

    def visit(content: int) -> int:
        """Blocks of a content of 3 blocks and 1 token that come from host memory."""
        seq = Sequence(content, 13, 1, chain=[(content, 0, 3)])
        loads = kv.loads(seq)
        assert kv.match(seq) == kv.inner.match(seq) + loads
        assert kv.admit(seq, 0 if loads else 13)
        if loads:
            assert kv.grow(seq, 1)
        seq.computed = 13
        kv.check()
        kv.release(seq, finished=True)
        kv.check()
        return loads // 4

    assert [visit(content) for content in (1, 2, 3)] == [0, 0, 0]
    assert visit(1) == 3, "1 and 2 had been pushed out to the host"
    assert (kv.copied_in_bytes, kv.dropped_bytes) == (3 * 4, 1 * 4), "then 3 was, and there was no room for its last"
    before = kv.out_bytes
    assert visit(4) == 0
    assert kv.out_bytes == before, "it was 2 that lost a block: all of 1 is in host memory still"
    assert [visit(content) for content in (5, 1)] == [0, 3]
    assert visit(2) == 0
