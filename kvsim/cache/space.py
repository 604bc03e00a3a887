"""A real address space of bytes: who lies where, and which holes are left between them."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import Literal

FitRule = Literal["first", "best"]


class Space:
    """Something that places intervals of bytes; `size`, `free` and `largest_hole` are in bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size

    @property
    def largest_hole(self) -> int:
        """The longest interval that `take` would grant now."""
        raise NotImplementedError

    def rounded(self, length: int) -> int:
        """Bytes really taken by an interval of `length`."""
        raise NotImplementedError

    def take(self, length: int) -> int:
        """Start of a new interval of `rounded(length)` bytes, or −1 if no hole is large enough."""
        raise NotImplementedError

    def give(self, start: int, length: int) -> None:
        """Free the interval that `take(length)` placed at `start`."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        raise NotImplementedError


class HoleSpace(Space):
    """Addresses 0 … size − 1 and the holes in it; neighbouring holes are always merged.

    `first` fit takes the hole of the lowest address, `best` fit the smallest that is large enough (ties: lowest
    address). Finding and merging are dictionary and bisect look-ups; only first fit looks at every hole that fits.
    All lengths asked for are multiples of `grain` bytes.
    """

    def __init__(self, size: int, fit: FitRule = "first", grain: int = 1) -> None:
        super().__init__(size)
        self.fit = fit
        self._grain = grain
        self._shift = (size // grain).bit_length()
        self._by_size: list[int] = []
        """the `_key` of every hole, ascending"""
        self._length: dict[int, int] = {}
        """length of the hole that begins at …"""
        self._start: dict[int, int] = {}
        """start of the hole that ends at …"""
        if size:
            self._add(0, size)

    @property
    def largest_hole(self) -> int:
        return self._length[self._start_of(self._by_size[-1])] if self._by_size else 0

    def rounded(self, length: int) -> int:
        return length

    def take(self, length: int) -> int:
        holes = self._by_size
        at = bisect_left(holes, self._key(0, length))
        if at == len(holes):
            return -1
        if self.fit == "first":
            start = min([self._start_of(hole) for hole in holes[at:]])
            at = bisect_left(holes, self._key(start, self._length[start]))
        else:
            start = self._start_of(holes[at])
        self._cut(at, start, length)
        return start

    def behind(self, start: int, length: int) -> int:
        """Bytes of the hole right behind the interval [start, start + length)."""
        return self._length.get(start + length, 0)

    def extend(self, start: int, length: int, by: int) -> bool:
        """Lengthen the interval [start, start + length) by `by` bytes in place, if the hole behind it is that long."""
        hole = start + length
        there = self._length.get(hole, 0)
        if there < by:
            return False
        self._cut(bisect_left(self._by_size, self._key(hole, there)), hole, by)
        return True

    def give(self, start: int, length: int) -> None:
        end = start + length
        self.free += length
        behind = self._length.pop(end, 0)
        if behind:
            self._drop(end, behind)
            end += behind
        before = self._start.pop(start, -1)
        if before >= 0:
            self._drop(before, start - before)
            start = before
        self._add(start, end - start)

    def copy(self) -> HoleSpace:
        """The same holes, to try something out."""
        other = HoleSpace(0, self.fit, self._grain)
        other.size, other.free, other._shift = self.size, self.free, self._shift
        other._by_size, other._length, other._start = self._by_size.copy(), self._length.copy(), self._start.copy()
        return other

    def holes(self) -> list[tuple[int, int]]:
        """(start, end) of every hole, in order of address."""
        return sorted((start, start + length) for start, length in self._length.items())

    def check(self) -> None:
        holes = self.holes()
        assert sum(end - start for start, end in holes) == self.free, "free bytes are not the sum of the holes"
        assert all(0 <= start < end <= self.size for start, end in holes), f"a hole is outside the space: {holes}"
        assert all(a[1] < b[0] for a, b in pairwise(holes)), f"holes overlap or touch: {holes}"
        assert self._start == {end: start for start, end in holes}
        assert self._by_size == sorted(self._key(start, end - start) for start, end in holes)
        assert all(start % self._grain == 0 for start, _ in holes), f"a hole begins between two grains: {holes}"
        assert self.largest_hole == max((end - start for start, end in holes), default=0)

    def _cut(self, at: int, start: int, length: int) -> None:
        """Take `length` bytes off the front of the hole at `start`, which is `_by_size[at]`."""
        whole = self._length.pop(start)
        del self._by_size[at]
        end, start = start + whole, start + length
        if start == end:
            del self._start[end]
        else:
            self._add(start, end - start)
        self.free -= length

    def _add(self, start: int, length: int) -> None:
        insort(self._by_size, self._key(start, length))
        self._length[start] = length
        self._start[start + length] = start

    def _drop(self, start: int, length: int) -> None:
        """Of a hole that grows into another: its place among the sizes."""
        del self._by_size[bisect_left(self._by_size, self._key(start, length))]

    def _key(self, start: int, length: int) -> int:
        """A hole as one number that sorts by length, then by start. In whole grains, so that it fits a machine word;
        only the hole at the end may hold a part of one, and it is the last of its length."""
        return (length // self._grain << self._shift) + start // self._grain

    def _start_of(self, key: int) -> int:
        return (key & ((1 << self._shift) - 1)) * self._grain
