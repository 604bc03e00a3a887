"""Prefix blocks in host memory, the ones unused for longest first to go.

Blocks are kept as *extents*: neighbouring blocks of one content id that were used together. They come and go as the
device evicts them, several at a time, so an extent costs what a block would; it splits only where a part of it is used
again.
"""

from __future__ import annotations

from itertools import pairwise

from kvsim.cache.ring import Link


class Extent(Link):
    """Blocks [lo, hi) of content `id`, the lowest the first to go. A link of the ring of all extents."""

    __slots__ = ("hi", "id", "lo")

    def __init__(self, id: int, lo: int, hi: int) -> None:
        super().__init__()
        self.id = id
        self.lo = lo
        self.hi = hi

    def __repr__(self) -> str:
        return f"Extent({self.id}, {self.lo}:{self.hi})"


class HostBlocks:
    """A set of blocks (content id, number) in order of their latest use.

    Invariants: extents of one id do not overlap; each is in the ring once and in the list of its id once.
    """

    def __init__(self) -> None:
        self.count = 0
        """blocks held"""
        self._extents: dict[int, list[Extent]] = {}
        """content id → its extents, in ascending order"""
        self._ring = Extent(-1, 0, 0)
        """sentinel: .next goes first, .prev was used last"""

    def use(self, id: int, lo: int, hi: int) -> int:
        """Blocks [lo, hi) of a content are used now, in ascending order; those that were not held are from now on.
        Returns how many that are."""
        extents = self._extents.get(id)
        if extents is None:
            extents = self._extents[id] = []
        at = _place(extents, lo)
        new = hi - lo
        while at < len(extents) and extents[at].lo < hi:
            old = extents[at]
            new -= min(old.hi, hi) - max(old.lo, lo)
            if old.lo < lo:
                if old.hi > hi:
                    upper = Extent(id, hi, old.hi)
                    upper.link(old.next)
                    extents.insert(at + 1, upper)
                old.hi = lo
                at += 1
            elif old.hi > hi:
                old.lo = hi
            else:
                old.unlink()
                del extents[at]
        latest: Extent = self._ring.prev
        if latest.hi == lo and latest.id == id and latest is not self._ring:
            latest.hi = hi
        else:
            extent = Extent(id, lo, hi)
            extent.link(self._ring)
            extents.insert(at, extent)
        self.count += new
        return new

    def reach(self, id: int, at: int, end: int) -> int:
        """The first block of a content from `at` on that is not held, at most `end`."""
        extents = self._extents.get(id)
        if extents is None:
            return at
        for place in range(_place(extents, at), len(extents)):
            extent = extents[place]
            if extent.lo > at or at >= end:
                break
            at = min(extent.hi, end)
        return at

    def drop(self, blocks: int) -> None:
        """Forget the `blocks` blocks (so many are held) unused for longest."""
        self.count -= blocks
        while blocks:
            oldest: Extent = self._ring.next
            size = oldest.hi - oldest.lo
            if size > blocks:
                oldest.lo += blocks
                return
            extents = self._extents[oldest.id]
            del extents[_place(extents, oldest.lo)]
            if not extents:
                del self._extents[oldest.id]
            oldest.unlink()
            blocks -= size

    def check(self) -> None:
        held: list[Extent] = []
        extent: Extent = self._ring.next
        while extent is not self._ring:
            assert extent.lo < extent.hi and extent.next.prev is extent, extent
            held.append(extent)
            extent = extent.next
        assert self.count == sum(extent.hi - extent.lo for extent in held)
        for id, extents in self._extents.items():
            assert extents and all(extent.id == id for extent in extents), extents
            assert all(a.hi <= b.lo for a, b in pairwise(extents)), extents
        listed = {extent for extents in self._extents.values() for extent in extents}
        assert listed == set(held) and sum(map(len, self._extents.values())) == len(held)


def _place(extents: list[Extent], block: int) -> int:
    """Place of the first extent that ends behind `block`."""
    low, high = 0, len(extents)
    while low < high:
        middle = (low + high) // 2
        if extents[middle].hi > block:
            high = middle
        else:
            low = middle + 1
    return low
