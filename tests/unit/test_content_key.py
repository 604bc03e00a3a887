"""What a radix tree knows of a request: one integer a page, equal exactly where the content up to there is equal."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.base import Sequence
from kvsim.cache.radix import RadixTree, key_of, units_of
from kvsim.engine.sglang_replica import content_key


def test_ids_for_each_page_then_what_is_private() -> None:
    seq = Sequence(5, prompt=70, output=30, chain=[(8, 0, 2), (9, 2, 1)])
    assert units_of(content_key(seq, 16)) == [8, 8, 9, -7, -7, -7]
    assert units_of(content_key(Sequence(5, prompt=30, output=9, chain=[(8, 0, 2), (9, 2, 1)]), 16)) == [8, 8]
    assert units_of(content_key(Sequence(0, prompt=15, output=17), 16)) == [-2, -2]
    assert content_key(Sequence(0, prompt=10, output=5), 16) == b""


def test_a_tree_finds_what_two_requests_share() -> None:
    tree = RadixTree()
    tree.insert(content_key(Sequence(0, prompt=96, output=32, chain=[(1, 0, 2), (2, 2, 4)]), 16))
    assert tree.match(content_key(Sequence(1, prompt=90, output=1, chain=[(1, 0, 2), (2, 2, 3)]), 16)).end == 5
    assert tree.match(content_key(Sequence(2, prompt=90, output=1, chain=[(1, 0, 2), (3, 2, 3)]), 16)).end == 2
    assert tree.match(content_key(Sequence(3, prompt=90, output=1), 16)).end == 0


@pytest.mark.parametrize("page", [1, 2, 5])
def test_common_pages_are_those_of_numpy(page: int) -> None:
    """Keys that differ in any byte of any unit, also in the sign."""
    rng = np.random.default_rng(page)
    for _ in range(300):
        first = rng.integers(-(1 << 62), 1 << 62, size=6 * page)
        second = first.copy()
        at = int(rng.integers(0, len(first)))
        second[at] ^= np.int64(1) << np.int64(rng.integers(0, 62))
        tree = RadixTree(page)
        tree.insert(key_of(first.tolist()))
        assert first.tobytes() == tree.root.children[first[:page].tobytes()].key
        assert tree.peek(key_of(second.tolist())) == at // page * page
        assert tree.match(key_of(second.tolist())).end == at // page * page
