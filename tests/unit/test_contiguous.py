"""How much each contiguous layout takes, and when `fit` moves."""

from __future__ import annotations

import pytest

from kvsim.cache.base import Sequence
from kvsim.cache.buddy import Buddy
from kvsim.cache.contiguous import Contiguous
from kvsim.cache.fit import Fit
from kvsim.cache.oracle import Oracle
from kvsim.cache.reserve import Reserve

SIZES = {"pool_bytes": 40_960, "token_bytes": 10, "max_model_len": 2048}


def decode(cache: Contiguous, seq: Sequence) -> None:
    seq.computed = seq.prompt
    seq.generated = 1
    seq.base, seq.decoding = seq.computed - cache.step, True
    cache.join(seq)


@pytest.mark.parametrize(
    ("layout", "capacity"),
    [
        (Reserve, 2048),
        (Oracle, 124),  # 100 + 25 − 1: the last token sampled is never stored
        (Buddy, 132),  # the paper's example: 25 tokens of output reserve 32
        (Fit, 112),
    ],
)
def test_tokens_reserved_for_100_and_25(layout: type[Contiguous], capacity: int) -> None:
    seq = Sequence(0, prompt=100, output=25)
    assert layout(**SIZES).capacity(seq, 100) == capacity


def test_buddy_takes_a_block_of_a_power_of_two() -> None:
    cache = Buddy(**SIZES)
    assert cache.admit(Sequence(7, 100, 25), 100)
    assert cache.memory_map() == [(0, 2560, 7)]
    stats = cache.stats()
    assert (stats.used, stats.reserved, stats.internal) == (1000, 240, 1320)


def test_reserve_holds_as_many_as_the_longest_would_allow() -> None:
    cache = Reserve(**SIZES)
    assert [cache.admit(Sequence(i, 10, 10), 10) for i in range(3)] == [True, True, False]


@pytest.mark.parametrize("layout", [Reserve, Oracle, Buddy, Fit])
def test_longer_than_the_model_or_the_pool_never_fits(layout: type[Contiguous]) -> None:
    cache = layout(**SIZES)
    assert cache.never_fits(Sequence(0, 2048, 2))
    assert not cache.never_fits(Sequence(0, 2048, 1))
    small = layout(pool_bytes=5_000, token_bytes=10, max_model_len=2048)
    assert small.never_fits(Sequence(0, 501, 1))


def test_ensure_asks_for_more_than_is_taken() -> None:
    cache = Fit(**SIZES)
    seq = Sequence(0, 4000, 10)
    cache.max_model_len = 5000
    assert not cache.admit(seq, 100, ensure=4097)
    assert cache.admit(seq, 100, ensure=4000)
    assert cache.stats().used == 1000


def test_fit_grows_in_place_when_it_can_and_copies_when_it_must() -> None:
    cache = Fit(**SIZES, growth_tokens=16)
    first, second = Sequence(0, 16, 100), Sequence(1, 16, 100)
    for seq in (first, second):
        assert cache.admit(seq, 16)
        decode(cache, seq)
    assert cache.horizon(50) == 1, "both are full, and the copy is paid by the step after this one"
    cache.advance(1)
    assert cache.memory_map() == [(320, 640, 0), (640, 960, 1)], "the first moved into the way of the second"
    assert cache.take_moved_bytes() == 2 * 160
    assert cache.take_moved_bytes() == 0
    assert cache.horizon(15) == 15
    assert cache.horizon(50) == 16, "full again after 15 more: the growth is the last of the stride"


@pytest.mark.parametrize("pieces", [[9, 16], [8, 1, 15, 1], [4, 5, 7, 9], [1] * 25])
def test_fit_grows_the_same_whatever_the_strides(pieces: list[int]) -> None:
    """Both grow after 8 tokens, and after 16 more; each is in the other's way. They move with 16 and with 32 tokens."""
    cache = Fit(**SIZES, growth_tokens=16)
    for row in (0, 1):
        seq = Sequence(row, 8, 100)
        assert cache.admit(seq, 8)
        decode(cache, seq)
    assert cache.memory_map() == [(0, 160, 0), (160, 320, 1)]
    for steps in pieces:
        assert cache.horizon(steps) == steps
        cache.advance(steps)
        cache.check()
    assert cache.memory_map() == [(0, 480, 1), (960, 1440, 0)]
    assert cache.take_moved_bytes() == 2 * (160 + 320)


def test_fit_that_cannot_grow_says_so_and_changes_nothing() -> None:
    cache = Fit(pool_bytes=480, token_bytes=10, max_model_len=48, growth_tokens=16)
    first, second = Sequence(0, 16, 20), Sequence(1, 16, 20)
    for seq in (first, second):
        assert cache.admit(seq, 16)
        decode(cache, seq)
    before = cache.memory_map()
    assert cache.horizon(10) == 0, "one of them can grow, both cannot"
    assert cache.memory_map() == before
    second.decoding = False
    cache.leave(second)
    cache.release(second, finished=False)
    assert cache.horizon(10) == 1
    cache.advance(1)
    assert cache.memory_map() == [(0, 320, 0)]
    assert cache.take_moved_bytes() == 0


def test_a_hole_that_takes_one_of_two_is_not_promised_to_both() -> None:
    """32 tokens are free behind the third: the first moves there, what it leaves is too short for the second."""
    cache = Fit(pool_bytes=800, token_bytes=10, max_model_len=48, growth_tokens=16)
    for seq in (Sequence(0, 16, 20), Sequence(1, 16, 20)):
        assert cache.admit(seq, 16)
        decode(cache, seq)
    assert cache.admit(Sequence(2, 16, 20), 16)
    assert cache.space.largest_hole == 320
    assert cache.horizon(10) == 0
    cache.check()
