"""The radix tree against a naive model that keeps every node under its whole path and scans them all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.radix import RANKS, WIDTH, RadixTree, key_of, units_of

Path = tuple[int, ...]


class Entry:
    def __init__(self, now: int) -> None:
        self.accessed = self.created = now
        self.hits = self.priority = self.locks = 0


class Naive:
    """The rules, word by word, on a dictionary from a node's path to what is known of it."""

    def __init__(self, page: int, eviction: str) -> None:
        self.page, self.eviction, self.now = page, eviction, 0
        self.nodes: dict[Path, Entry] = {}

    def common(self, a: Path, b: Path) -> int:
        n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        return n // self.page * self.page

    def start(self, path: Path) -> int:
        return max((len(p) for p in self.nodes if len(p) < len(path) and path[: len(p)] == p), default=0)

    def match(self, key: Path) -> int:
        key = key[: len(key) // self.page * self.page]
        self.now += 1
        matched = max((self.common(p, key) for p in self.nodes), default=0)
        visited = [p for p in self.nodes if self.common(p, key) > self.start(p)]
        for path in visited:
            self.nodes[path].accessed = self.now
        partly = [p for p in visited if self.common(p, key) < len(p)]
        if partly:
            self.now += 1
            lower, upper = self.nodes[partly[0]], Entry(self.now)
            upper.hits, upper.priority, upper.locks = lower.hits, lower.priority, lower.locks
            self.nodes[key[:matched]] = upper
        return matched

    def insert(self, key: Path, before: int, priority: int) -> int:
        key = key[: len(key) // self.page * self.page]
        already = self.match(key)
        if already < len(key):
            self.now += 1
            self.nodes[key] = Entry(self.now)
        for path, entry in self.nodes.items():
            if key[: len(path)] == path:
                entry.hits += len(path) > before
                entry.priority = max(entry.priority, priority)
        return already

    def lock(self, end: Path, by: int) -> None:
        for path, entry in self.nodes.items():
            if end[: len(path)] == path:
                entry.locks += by

    def rank(self, path: Path) -> tuple[int, ...]:
        e = self.nodes[path]
        return {
            "lru": (e.accessed,), "lfu": (e.hits, e.accessed), "fifo": (e.created,),
            "slru": (int(e.hits >= 2), e.accessed), "priority": (e.priority, e.accessed),
        }[self.eviction]

    def evict(self, want: int) -> list[Path]:
        gone: list[Path] = []
        while want > 0:
            leaves = [
                p for p, e in self.nodes.items()
                if not e.locks and not any(len(q) > len(p) and q[: len(p)] == p for q in self.nodes)
            ]
            if not leaves:
                break
            path = min(leaves, key=self.rank)
            want -= len(path) - self.start(path)
            gone.append(path)
            del self.nodes[path]
        return gone

    def sizes(self) -> tuple[int, int]:
        """Evictable and protected."""
        runs = [(len(p) - self.start(p), e.locks) for p, e in self.nodes.items()]
        return sum(n for n, locks in runs if not locks), sum(n for n, locks in runs if locks)


def walk(seed: int, page: int, eviction: str, operations: int, every: int) -> None:
    rng = random.Random(seed)
    tree, naive = RadixTree(page, eviction), Naive(page, eviction)
    keys: list[Path] = [()]
    locked = []
    for i in range(operations):
        head = rng.choice(keys)
        key = head[: rng.randrange(len(head) + 1)] + tuple(rng.randrange(2) for _ in range(rng.randrange(3 * page + 2)))
        units = key_of(key)
        pick = rng.random()
        if pick < 0.25:
            assert tree.match(units).end == naive.match(key)
        elif pick < 0.55:
            before, priority = rng.choice([0, 0, len(key) // 2]), rng.choice([0, 0, 3])
            assert tree.insert(units, before, priority) == naive.insert(key, before, priority)
            keys = [*keys[-8:], key]
        elif pick < 0.7:
            node = tree.match(units)
            naive.match(key)
            end = tuple(units_of(node.path()))
            locked.append((node, end))
            tree.lock(node)
            naive.lock(end, 1)
        elif pick < 0.86 and locked:
            node, end = locked.pop(rng.randrange(len(locked)))
            tree.unlock(node)
            naive.lock(end, -1)
        else:
            want = rng.randrange(0, 6 * page + 2)
            assert [tuple(units_of(node.path())) for node in tree.evict(want)] == naive.evict(want)
        if i % every == 0:
            tree.check()
            assert (tree.evictable, tree.protected) == naive.sizes()
    for node, _ in locked:
        tree.unlock(node)
    tree.evict(tree.size)
    assert tree.size == tree.evictable == 0
    tree.check()


@pytest.mark.parametrize("eviction", RANKS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), page=st.sampled_from([1, 2, 4]))
def test_every_operation_of_short_walks(eviction: str, seed: int, page: int) -> None:
    walk(seed, page, eviction, operations=60, every=1)


@pytest.mark.parametrize(("eviction", "page"), [("lru", 1), ("lfu", 2), ("fifo", 3), ("slru", 4), ("priority", 2)])
def test_long_walk(eviction: str, page: int) -> None:
    walk(page, page, eviction, operations=6_000, every=50)


@pytest.mark.slow
@pytest.mark.parametrize("eviction", RANKS)
def test_longer_walk(eviction: str) -> None:
    walk(17, 2, eviction, operations=100_000, every=50)


def test_a_long_prompt_is_matched_whole() -> None:
    tree = RadixTree(page=16)
    prompt = key_of(range(100_000))
    assert tree.insert(prompt) == 0
    assert tree.match(prompt).end == 100_000
    assert tree.match(prompt[: 50_007 * WIDTH]).end == 50_000
    assert tree.insert(prompt[: 70_000 * WIDTH] + prompt[: 30_000 * WIDTH]) == 70_000
    assert tree.size == 130_000
