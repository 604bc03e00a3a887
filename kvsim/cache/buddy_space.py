"""A buddy allocator: a space cut by halving, whose free halves find each other again."""

from __future__ import annotations

from bisect import insort
from itertools import pairwise

from kvsim.cache.space import Space


def power_of_two(n: int) -> int:
    """The smallest power of two ≥ n (n ≥ 1)."""
    return 1 << (n - 1).bit_length()


class BuddySpace(Space):
    """Blocks of 2^k units, each at a multiple of its size; two free halves of one block are merged at once.

    A space that is no power of two is cut into the powers it is made of, the largest first; bytes beyond the last
    whole unit are never handed out. `largest_hole` is the largest free block, since two free neighbours that are no
    halves of one block serve no larger request.
    """

    def __init__(self, size: int, unit: int) -> None:
        super().__init__(size)
        self.unit = unit
        units = size // unit
        self._free: list[list[int]] = [[] for _ in range(units.bit_length())]
        """first units of the free blocks of 2^k units, ascending"""
        at = 0
        for order in reversed(range(units.bit_length())):
            if units >> order & 1:
                self._free[order].append(at)
                at += 1 << order

    @property
    def largest_hole(self) -> int:
        return next((self.unit << k for k in reversed(range(len(self._free))) if self._free[k]), 0)

    def rounded(self, length: int) -> int:
        return power_of_two(-(-length // self.unit)) * self.unit

    def take(self, length: int) -> int:
        wanted = self._order(length)
        order = next((k for k in range(wanted, len(self._free)) if self._free[k]), -1)
        if order < 0:
            return -1
        at = self._free[order].pop(0)
        while order > wanted:
            order -= 1
            insort(self._free[order], at + (1 << order))
        self.free -= self.unit << wanted
        return at * self.unit

    def give(self, start: int, length: int) -> None:
        order, at = self._order(length), start // self.unit
        self.free += self.unit << order
        while (buddy := at ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            at = min(at, buddy)
            order += 1
        insort(self._free[order], at)

    def check(self) -> None:
        blocks = sorted((at, at + (1 << k)) for k, starts in enumerate(self._free) for at in starts)
        spare = self.size % self.unit
        assert sum(end - at for at, end in blocks) * self.unit + spare == self.free, "free units do not add up"
        assert all(a[1] <= b[0] for a, b in pairwise(blocks)), f"free blocks overlap: {blocks}"
        for k, starts in enumerate(self._free):
            assert starts == sorted(starts)
            assert all(at % (1 << k) == 0 for at in starts), f"a block of 2^{k} units is not aligned: {starts}"
            assert not any(at ^ (1 << k) in starts for at in starts), f"two free buddies of 2^{k} units: {starts}"

    def _order(self, length: int) -> int:
        return (-(-length // self.unit) - 1).bit_length()
