"""A ring of links, each in one ring at most: what leaves or moves is known, so nothing is looked for."""

from __future__ import annotations

from typing import Any


class Link:
    """A member of a ring; alone it is a ring of its own, which is how a sentinel begins. `prev` and `next` are of the
    subclass whose ring it is."""

    __slots__ = ("next", "prev")

    def __init__(self) -> None:
        self.prev: Any = self
        self.next: Any = self

    def link(self, before: Link) -> None:
        """Stand right before `before`."""
        self.prev, self.next = before.prev, before
        before.prev.next = self
        before.prev = self

    def unlink(self) -> None:
        """Leave the ring."""
        self.prev.next = self.next
        self.next.prev = self.prev
