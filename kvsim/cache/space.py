"""A real address space of bytes: who lies where, and which holes are left between them."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import Literal, Protocol

FitRule = Literal["first", "best"]


class Space(Protocol):
    """Something that places intervals of bytes. `free` and `largest_hole` are in bytes."""

    size: int
    free: int

    @property
    def largest_hole(self) -> int:
        """The longest interval that `take` would grant now."""

    def rounded(self, length: int) -> int:
        """Bytes really taken by an interval of `length`."""

    def take(self, length: int) -> int:
        """Start of a new interval of `rounded(length)` bytes, or −1 if no hole is large enough."""

    def give(self, start: int, length: int) -> None:
        """Free the interval that `take(length)` placed at `start`."""

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""


class HoleSpace:
    """Addresses 0 … size − 1 and the holes in it; neighbouring holes are always merged.

    `first` fit takes the hole of the lowest address, `best` fit the smallest that is large enough (ties: lowest
    address). Finding and merging are dictionary and bisect look-ups; only first fit looks at every hole that fits.
    """

    def __init__(self, size: int, fit: FitRule = "first") -> None:
        self.size = size
        self.free = size
        self.fit = fit
        self._by_size: list[tuple[int, int]] = []
        """(length, start) of every hole, ascending"""
        self._length: dict[int, int] = {}
        """length of the hole that begins at …"""
        self._start: dict[int, int] = {}
        """start of the hole that ends at …"""
        if size:
            self._add(0, size)

    @property
    def largest_hole(self) -> int:
        return self._by_size[-1][0] if self._by_size else 0

    def rounded(self, length: int) -> int:
        return length

    def take(self, length: int) -> int:
        at = bisect_left(self._by_size, (length, 0))
        if at == len(self._by_size):
            return -1
        start = self._by_size[at][1] if self.fit == "best" else min(start for _, start in self._by_size[at:])
        self._cut(start, length)
        return start

    def extend(self, start: int, length: int, by: int) -> bool:
        """Lengthen the interval [start, start + length) by `by` bytes in place, if the hole behind it is that long."""
        if self._length.get(start + length, 0) < by:
            return False
        self._cut(start + length, by)
        return True

    def give(self, start: int, length: int) -> None:
        end = start + length
        self.free += length
        if end in self._length:
            end += self._remove(end)
        if start in self._start:
            start = self._start[start]
            self._remove(start)
        self._add(start, end - start)

    def copy(self) -> HoleSpace:
        """The same holes, to try something out."""
        other = HoleSpace(0, self.fit)
        other.size, other.free = self.size, self.free
        other._by_size, other._length, other._start = self._by_size.copy(), self._length.copy(), self._start.copy()
        return other

    def holes(self) -> list[tuple[int, int]]:
        """(start, end) of every hole, in order of address."""
        return sorted((start, start + length) for length, start in self._by_size)

    def check(self) -> None:
        holes = self.holes()
        assert sum(end - start for start, end in holes) == self.free, "free bytes are not the sum of the holes"
        assert all(0 <= start < end <= self.size for start, end in holes), f"a hole is outside the space: {holes}"
        assert all(a[1] < b[0] for a, b in pairwise(holes)), f"holes overlap or touch: {holes}"
        assert self._length == {start: end - start for start, end in holes}
        assert self._start == {end: start for start, end in holes}
        assert self._by_size == sorted(self._by_size)

    def _cut(self, start: int, length: int) -> None:
        """Take `length` bytes off the front of the hole at `start`."""
        rest = self._remove(start) - length
        if rest:
            self._add(start + length, rest)
        self.free -= length

    def _add(self, start: int, length: int) -> None:
        insort(self._by_size, (length, start))
        self._length[start] = length
        self._start[start + length] = start

    def _remove(self, start: int) -> int:
        length = self._length.pop(start)
        del self._start[start + length]
        del self._by_size[bisect_left(self._by_size, (length, start))]
        return length
