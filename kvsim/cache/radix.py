"""SGLang's RadixCache as a tree of token runs (rules of SGLang 0.5, learned from recordings of it).

A key is a sequence of integers, the tree's units: tokens, or ids that stand for whole pages of them. It is cut to whole
pages first; a child is found by its first page, so two keys that differ inside a page share nothing of that page.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from struct import Struct

from mypy_extensions import mypyc_attr

Key = bytes
"""units, WIDTH bytes each (`key_of`): cut, compared and looked up in one call each, however long"""
WIDTH = 8
_pack = Struct("=q").pack


def key_of(units: Iterable[int]) -> Key:
    """The key of these integers of 64 bits."""
    return array("q", units).tobytes()


def same(unit: int, count: int) -> Key:
    """The key of `count` times the same integer."""
    key: Key = _pack(unit)
    return key * count


def units_of(key: Key) -> list[int]:
    """The integers that a key is made of."""
    return array("q", key).tolist()


class Node:
    """A run of whole pages behind its parent's. Only leaves that nobody has locked can be evicted, and only whole."""

    __slots__ = (
        "accessed", "children", "created", "end", "hits", "key", "locks", "parent", "priority", "queued", "size",
    )

    def __init__(self, key: Key, parent: Node | None, now: int) -> None:
        self.key = key
        self.parent = parent
        self.size = len(key) // WIDTH
        """units of the node itself"""
        self.end: int = self.size + (parent.end if parent else 0)
        """units from the root to this node's end"""
        self.children: dict[Key, Node] = {}
        """by their first page"""
        self.accessed = now
        self.created = now
        self.hits = 0
        """inserts that went through it"""
        self.priority = 0
        """the highest of the inserts that went through it"""
        self.locks = 0
        self.queued = False
        """whether the heap of eviction candidates has an entry for it"""

    def path(self) -> Key:
        """All of the key from the root to this node's end."""
        parts: list[Key] = []
        node: Node | None = self
        while node:
            parts.append(node.key)
            node = node.parent
        return b"".join(parts[::-1])

    def __repr__(self) -> str:
        return f"Node({self.end - self.size}:{self.end}, locks={self.locks}, children={len(self.children)})"


CLOCK = 60
"""bits of a rank that hold a time; what counts before the time stands above them"""


def lru(node: Node) -> int:
    return node.accessed


def lfu(node: Node) -> int:
    return node.hits << CLOCK | node.accessed


def fifo(node: Node) -> int:
    return node.created


def slru(node: Node) -> int:
    """Segmented: what was inserted once goes before what was inserted again."""
    return (node.hits >= 2) << CLOCK | node.accessed


def priority(node: Node) -> int:
    return node.priority << CLOCK | node.accessed


RANKS: dict[str, Callable[[Node], int]] = {"lru": lru, "lfu": lfu, "fifo": fifo, "slru": slru, "priority": priority}
"""Eviction orders: the smallest rank goes first. A node's rank may only grow while it lives (see `evict`)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RadixTree:
    """What is cached, in units of the key. The clock is a counter: recency has no ties.

    Invariants: `evictable` + `protected` = units in the tree; a lock on a node holds its whole path; every leaf
    without locks has one entry in the heap, whose rank is at most its own.
    """

    def __init__(self, page: int = 1, eviction: str = "lru") -> None:
        self.page = page
        self._page = page * WIDTH
        """bytes of a key's page"""
        self.rank = RANKS[eviction]
        self.evictable = 0
        self.protected = 0
        self._now = 0
        self._pushed = 0
        self.root = Node(b"", None, 0)
        self._heap: list[tuple[int, int, Node]] = []

    @property
    def size(self) -> int:
        return self.evictable + self.protected

    def peek(self, key: Key) -> int:
        """Units of `key` that are cached; nothing is split and nothing becomes recent."""
        key, page = self._whole(key), self._page
        node, at = self.root, 0
        while at < len(key) and (child := node.children.get(key[at : at + page])):
            shared = self._common(child.key, key[at : at + len(child.key)])
            at += shared
            if shared < len(child.key):
                break
            node = child
        return at // WIDTH

    def match(self, key: Key, known: Node | None = None) -> Node:
        """The node at which the longest cached prefix of `key` ends; `node.end` units match.

        A node that matches in part is split there. All nodes visited become recent, the lower half of a split too.
        `known` is a node in the tree with whose path `key` agrees as far as both go: that part is not compared again.
        """
        key, page = self._whole(key), self._page
        now = self._tick()
        node = known or self.root
        while node.parent and node.end * WIDTH > len(key):
            node = node.parent
        at = node.end * WIDTH
        above = node
        while above.parent:
            above.accessed = now
            above = above.parent
        while at < len(key) and (child := node.children.get(key[at : at + page])):
            child.accessed = now
            shared = self._common(child.key, key[at : at + len(child.key)])
            node = child if shared == len(child.key) else self._split(child, shared)
            at += shared
        return node

    def insert(self, key: Key, inserted_before: int = 0, priority: int = 0, known: Node | None = None) -> int:
        """Put the whole pages of `key` into the tree; returns how many units were there already. `known` as in `match`.

        An insert counts as a hit on every node of the path that ends behind `inserted_before`, so that a request that
        inserts a growing key counts once. What is new becomes one leaf, evictable until locked.
        """
        key = self._whole(key)
        node = self.match(key, known)
        already = node.end
        if already * WIDTH < len(key):
            leaf = Node(key[already * WIDTH :], node, self._tick())
            node.children[leaf.key[: self._page]] = leaf
            self.evictable += leaf.size
            leaf.priority = priority
            self._queue(leaf)
            node = leaf
        while node.parent:
            node.hits += node.end > inserted_before
            node.priority = max(node.priority, priority)
            node = node.parent
        return already

    def lock(self, node: Node) -> None:
        """Keep `node` and all above it from eviction, until as many `unlock`s."""
        while node.parent:
            if node.locks == 0:
                self.evictable -= node.size
                self.protected += node.size
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += node.size
                self.protected -= node.size
                self._queue(node)
            node = node.parent

    def evict(self, want: int) -> list[Node]:
        """Remove the leaves of smallest rank until `want` units are gone, or nothing is left; returns them in order.

        The last leaf goes whole, so more than `want` may go. Ranks only grow, so an entry of the heap is a lower bound
        and is brought up to date when it comes up: no walk touches the heap.
        """
        gone: list[Node] = []
        while want > 0 and self._heap:
            rank, _, node = heappop(self._heap)
            node.queued = False
            if node.children or node.locks or not node.parent:
                continue
            if self.rank(node) != rank:
                self._queue(node)
                continue
            del node.parent.children[node.key[: self._page]]
            self.evictable -= node.size
            want -= node.size
            gone.append(node)
            self._queue(node.parent)
        return gone

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        todo = list(self.root.children.values())
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children.values())

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken. Slow: for tests."""
        ranks = {id(node): rank for rank, _, node in self._heap}
        assert len(ranks) == len(self._heap), "a node is queued twice"
        evictable = protected = 0
        for node in self.nodes():
            assert node.parent and node.key and len(node.key) % self._page == 0
            assert node.size == len(node.key) // WIDTH and node.end == node.parent.end + node.size
            assert node.parent.children[node.key[: self._page]] is node
            assert node.locks >= sum(child.locks for child in node.children.values()) >= 0
            assert node.queued == (id(node) in ranks)
            if not node.children and not node.locks:
                assert ranks[id(node)] <= self.rank(node), f"{node} would be evicted too late"
            evictable += 0 if node.locks else node.size
            protected += node.size if node.locks else 0
        assert (evictable, protected) == (self.evictable, self.protected)

    def _queue(self, node: Node) -> None:
        """Make `node` a candidate for eviction if it is one and is not queued yet."""
        if not (node.queued or node.children or node.locks) and node.parent:
            node.queued = True
            self._pushed += 1
            heappush(self._heap, (self.rank(node), self._pushed, node))

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` behind `at` bytes; returns the new upper half. The lower half stays the same object."""
        assert node.parent
        upper = Node(node.key[:at], node.parent, self._tick())
        upper.hits, upper.priority, upper.locks = node.hits, node.priority, node.locks
        node.parent.children[upper.key[: self._page]] = upper
        node.key = node.key[at:]
        node.size -= upper.size
        node.parent = upper
        upper.children[node.key[: self._page]] = node
        return upper

    def _whole(self, key: Key) -> Key:
        """`key` cut to whole pages."""
        return key[: len(key) - len(key) % self._page]

    def _common(self, run: Key, key: Key) -> int:
        """Bytes of the common prefix in whole pages; `key` has whole pages and is no longer than `run`."""
        if run.startswith(key):
            return len(key)
        differ = int.from_bytes(run[: len(key)], "little") ^ int.from_bytes(key, "little")
        first = ((differ & -differ).bit_length() - 1) // 8  # the byte of the lowest bit that is not the same
        return first - first % self._page

    def _tick(self) -> int:
        self._now += 1
        return self._now
