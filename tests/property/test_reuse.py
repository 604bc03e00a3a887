"""Offline reuse of prefixes: against naive models, the true optimum of small cases, and the Mooncake trace."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.reuse import RANKS, Blocks, reused_tokens
from kvsim.errors import InputError
from kvsim.trace.types import Trace, make_trace

SIZE = 4


def tree_trace(seed: int, rows: int, depth: int = 4) -> Trace:
    """Requests that walk down a small tree of blocks; a prompt has one token more than its blocks."""
    rng = random.Random(seed)
    known: dict[tuple[int, ...], int] = {}
    chains = []
    for _ in range(rows):
        path = tuple(rng.choice([0, 0, 1]) for _ in range(rng.randrange(1, depth + 1)))
        chains.append([known.setdefault(path[: i + 1], len(known)) for i in range(len(path))])
    return make_trace(
        "tree", "test", np.zeros(rows), [len(chain) * SIZE + 1 for chain in chains], np.ones(rows),
        block_size=SIZE, block_rule="floor", block_ids=np.array([i for c in chains for i in c], np.int64),
        block_start=np.cumsum([0, *(len(chain) for chain in chains)]),
    )


def rows_of(blocks: Blocks) -> list[list[int]]:
    return [blocks.keys[a:b].tolist() for a, b in zip(blocks.start, blocks.start[1:], strict=False)]


def leading(row: list[int], cached: set[int]) -> int:
    return next((i for i, key in enumerate(row) if key not in cached), len(row))


def value(policy: str, used: list[int], following: int) -> tuple[int, ...]:
    """What a block is worth to a policy."""
    match policy:
        case "lru":
            return (used[-1],)
        case "fifo":
            return (used[0],)
        case "lfu":
            return len(used), used[-1]
    return (-following,)


def naive(blocks: Blocks, capacity: int, policy: str) -> int:
    """Blocks reused, by sorting everything after every request."""
    rows = rows_of(blocks)
    depth = {key: i for row in rows for i, key in enumerate(row)}
    cached: set[int] = set()
    used: dict[int, list[int]] = {}
    hits = 0
    for now, row in enumerate(rows):
        hits += leading(row, cached)
        used = {key: times for key, times in used.items() if key in cached}
        for key in row:
            used.setdefault(key, []).append(now)
        cached |= set(row)
        following = {k: next((j for j in range(now + 1, len(rows)) if k in rows[j]), len(rows)) for k in cached}
        ranked = [(value(policy, used[key], following[key]), -depth[key], key) for key in cached]
        cached = {key for _, _, key in sorted(ranked, reverse=True)[:capacity]}
    return hits


def best_possible(blocks: Blocks, capacity: int) -> int:
    """Blocks reused by the best of all ways to choose what to keep."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    for row in rows_of(blocks):
        after: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            hits += leading(row, set(cached))
            choice = sorted(cached | set(row))
            for kept in combinations(choice, min(capacity, len(choice))):
                after[frozenset(kept)] = max(hits, after.get(frozenset(kept), 0))
        states = after
    return max(states.values())


@pytest.mark.parametrize("policy", RANKS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), capacity=st.integers(1, 12))
def test_as_a_naive_model_says(policy: str, seed: int, capacity: int) -> None:
    blocks = Blocks.of(tree_trace(seed, 30), SIZE)
    assert reused_tokens(blocks, capacity, policy) == naive(blocks, capacity, policy) * SIZE


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), capacity=st.integers(1, 4))
def test_belady_is_the_optimum(seed: int, capacity: int) -> None:
    blocks = Blocks.of(tree_trace(seed, 8, depth=3), SIZE)
    assert reused_tokens(blocks, capacity, "belady") == best_possible(blocks, capacity) * SIZE


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_more_room_never_hurts_lru_and_belady_and_none_beats_belady(seed: int) -> None:
    blocks = Blocks.of(tree_trace(seed, 60, depth=6), SIZE)
    unlimited = reused_tokens(blocks, None)
    curves = {policy: [reused_tokens(blocks, c, policy) for c in range(1, blocks.distinct + 1)] for policy in RANKS}
    for policy in ("lru", "belady"):
        assert curves[policy] == sorted(curves[policy])
    for curve in curves.values():
        assert curve[-1] == unlimited
        assert all(a <= b for a, b in zip(curve, curves["belady"], strict=True))


def test_smaller_blocks_find_what_larger_ones_miss() -> None:
    """20 ids of 8 tokens under cache blocks of 4, 8 and 16 tokens; the second prompt leaves the first after 3 ids."""
    trace = make_trace(
        "two", "test", [0, 1], [80, 80], [1, 1], block_size=8, block_rule="floor",
        block_ids=np.array([*range(10), 0, 1, 2, *range(10, 17)], np.int64), block_start=np.array([0, 10, 20]),
    )
    assert [reused_tokens(Blocks.of(trace, size), None) for size in (4, 8, 16)] == [24, 24, 16]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    trace = make_trace(
        "same", "test", [0, 1], [16, 16], [1, 1], block_size=8, block_rule="floor",
        block_ids=np.array([0, 1, 0, 1], np.int64), block_start=np.array([0, 2, 4]),
    )
    assert reused_tokens(Blocks.of(trace, 8), None) == 8
    assert reused_tokens(Blocks.of(trace, 4), None) == 12


def test_a_trace_without_ids_is_refused() -> None:
    with pytest.raises(InputError, match="no block ids"):
        Blocks.of(make_trace("plain", "test", [0], [10], [1]), 16)


@pytest.mark.shared
def test_mooncake_conversation(shared: Path) -> None:
    """Published: 37.4 % of its prompt tokens are reusable with unlimited space."""
    from kvsim.trace.loading import load

    blocks = Blocks.of(load(shared / "traces" / "mooncake_conversation.jsonl.gz"), 512)
    tokens = int(blocks.prompt_tokens.sum())
    assert reused_tokens(blocks, None) / tokens == pytest.approx(0.374, abs=0.001)
    share = {
        policy: [reused_tokens(blocks, capacity, policy) / tokens for capacity in (1_000, 20_000)]
        for policy in RANKS
    }
    for policy, curve in share.items():
        assert all(a <= b for a, b in zip(curve, share["belady"], strict=True)), policy
    assert share["lru"] == sorted(share["lru"])
    assert share["belady"] == sorted(share["belady"])
    assert share["belady"][-1] == pytest.approx(0.374, abs=0.001), "what is reused at all fits into 20,000 blocks"
