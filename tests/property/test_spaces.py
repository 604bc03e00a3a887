"""Hole and buddy spaces against a byte map: random takes, gives and extensions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.buddy_space import BuddySpace, power_of_two
from kvsim.cache.space import HoleSpace


def holes(taken: bytearray) -> list[tuple[int, int]]:
    """(start, length) of the runs of zeros."""
    found, at = [], 0
    while (at := taken.find(0, at)) >= 0:
        end = taken.find(1, at)
        end = len(taken) if end < 0 else end
        found.append((at, end - at))
        at = end
    return found


def walk(space: HoleSpace, seed: int, operations: int, longest: int, every: int) -> None:
    rng, taken = random.Random(seed), bytearray(space.size)
    live: list[tuple[int, int]] = []
    for i in range(operations):
        pick = rng.random()
        if pick < 0.45:
            length = rng.randrange(1, longest)
            start = space.take(length)
            if i % every == 0:
                fitting = [(n if space.fit == "best" else 0, at) for at, n in holes(taken) if n >= length]
                assert start == min(fitting, default=(0, -1))[1]
            if start >= 0:
                assert not any(taken[start : start + length]), "handed out twice"
                taken[start : start + length] = b"\1" * length
                live.append((start, length))
        elif pick < 0.55 and live:
            start, length = live[rng.randrange(len(live))]
            by = rng.randrange(1, longest)
            room = taken.find(1, start + length)
            fits = (len(taken) if room < 0 else room) - start - length >= by
            assert space.extend(start, length, by) == fits
            if fits:
                taken[start + length : start + length + by] = b"\1" * by
                live[live.index((start, length))] = (start, length + by)
        elif live:
            start, length = live.pop(rng.randrange(len(live)))
            space.give(start, length)
            taken[start : start + length] = bytes(length)
        if i % every == 0:
            space.check()
            assert space.holes() == [(at, at + n) for at, n in holes(taken)]
            assert space.free == taken.count(0)
            assert space.largest_hole == max((n for _, n in holes(taken)), default=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(["first", "best"]), st.integers(1, 300), st.integers(2, 60))
def test_holes_every_operation(seed: int, fit: str, size: int, longest: int) -> None:
    walk(HoleSpace(size, fit), seed, 80, longest, every=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", ["first", "best"])
def test_holes_long(fit: str) -> None:
    walk(HoleSpace(5_000, fit), 1, 150_000, 200, every=50)  # type: ignore[arg-type]


def test_a_copy_is_independent() -> None:
    space = HoleSpace(100)
    space.take(10)
    copy = space.copy()
    copy.take(20)
    space.check()
    copy.check()
    assert (space.free, copy.free) == (90, 70)


def buddy_walk(size: int, unit: int, seed: int, operations: int, longest: int, every: int) -> None:
    space, rng, taken = BuddySpace(size, unit), random.Random(seed), bytearray(size // unit)
    live: list[tuple[int, int]] = []
    for i in range(operations):
        if rng.random() < 0.5 or not live:
            length, largest = rng.randrange(1, longest), space.largest_hole
            start = space.take(length)
            assert (start < 0) == (space.rounded(length) > largest)
            if start >= 0:
                at, n = start // unit, space.rounded(length) // unit
                assert n == power_of_two(-(-length // unit)) and start % (n * unit) == 0
                assert not any(taken[at : at + n]), "handed out twice"
                taken[at : at + n] = b"\1" * n
                live.append((start, length))
        else:
            start, length = live.pop(rng.randrange(len(live)))
            space.give(start, length)
            at, n = start // unit, space.rounded(length) // unit
            taken[at : at + n] = bytes(n)
        if i % every == 0:
            space.check()
            assert space.free == taken.count(0) * unit + size % unit
    for start, length in live:
        space.give(start, length)
    space.check()
    assert space.free == size
    assert space.largest_hole == (unit << (size // unit).bit_length() >> 1 if size >= unit else 0), "not all merged"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 400), st.integers(1, 7), st.integers(2, 100))
def test_buddies_every_operation(seed: int, size: int, unit: int, longest: int) -> None:
    buddy_walk(size, unit, seed, 80, longest, every=1)


def test_buddies_long() -> None:
    buddy_walk(3_001, 3, 1, 150_000, 200, every=50)
