"""Random lives of sequences through every contiguous layout, against a naive model that only knows the memory map."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.base import Sequence
from kvsim.cache.buddy import Buddy
from kvsim.cache.contiguous import Contiguous
from kvsim.cache.fit import Fit
from kvsim.cache.oracle import Oracle
from kvsim.cache.reserve import Reserve

LONGEST = 96
LAYOUTS: dict[str, Callable[..., Contiguous]] = {
    "reserve": Reserve,
    "oracle first": Oracle,
    "oracle best": lambda **k: Oracle(placement="best", **k),
    "oracle buddy": lambda **k: Oracle(placement="buddy", **k),
    "buddy": Buddy,
    "fit first": lambda **k: Fit(growth_tokens=8, **k),
    "fit best": lambda **k: Fit(growth_tokens=5, placement="best", **k),
}


class Walk:
    """Sequences driven at random through one allocator, and through a twin that only ever takes single steps."""

    def __init__(self, make: Callable[..., Contiguous], seed: int, pool_tokens: int = 700) -> None:
        self.rng = random.Random(seed)
        sizes = {"pool_bytes": pool_tokens * 10 + 3, "token_bytes": 10, "max_model_len": LONGEST}
        self.cache, self.twin = make(**sizes), make(**sizes)
        self.live: list[tuple[Sequence, Sequence]] = []
        self.preempted: list[tuple[Sequence, Sequence]] = []
        self.rows = 0

    def both(self, call: Callable[[Contiguous, Sequence], Any], pair: tuple[Sequence, Sequence]) -> Any:
        one, two = call(self.cache, pair[0]), call(self.twin, pair[1])
        assert one == two
        return one

    def unchanged_if_refused(
        self, call: Callable[[Contiguous, Sequence], bool], pair: tuple[Sequence, Sequence]
    ) -> bool:
        before = self.cache.stats(), self.cache.memory_map(), pair[0].computed, pair[0].store
        granted: bool = self.both(call, pair)
        if not granted:
            assert before == (self.cache.stats(), self.cache.memory_map(), pair[0].computed, pair[0].store)
        return granted

    def step(self) -> None:
        pick = self.rng.random()
        if pick < 0.3 or not self.live:
            self.admit()
        elif pick < 0.5:
            self.prefill()
        elif pick < 0.93:
            self.decode()
        else:
            self.drop(self.rng.choice(self.live), finished=False)

    def admit(self) -> None:
        if self.preempted and self.rng.random() < 0.7:
            pair = self.preempted.pop()
        else:
            prompt = self.rng.randrange(1, LONGEST // 2)
            output = self.rng.randrange(1, LONGEST - prompt)
            pair = Sequence(self.rows, prompt, output), Sequence(self.rows, prompt, output)
            self.rows += 1
        if self.cache.never_fits(pair[0]):
            return
        tokens = self.rng.randrange(1, pair[0].tokens + 1)
        if self.unchanged_if_refused(lambda cache, seq: cache.admit(seq, tokens), pair):
            for seq in pair:
                seq.computed += tokens
            self.live.append(pair)
            self.sampled(pair)
        elif pair[0].preemptions:
            self.preempted.append(pair)

    def prefill(self) -> None:
        pairs = [pair for pair in self.live if not pair[0].decoding]
        if not pairs:
            return
        pair = self.rng.choice(pairs)
        tokens = self.rng.randrange(1, pair[0].pending + 1)
        if self.unchanged_if_refused(lambda cache, seq: cache.grow(seq, tokens), pair):
            for seq in pair:
                seq.computed += tokens
            self.sampled(pair)

    def sampled(self, pair: tuple[Sequence, Sequence]) -> None:
        """If the prompt is complete: one token is sampled, and the sequence ends or decodes."""
        if pair[0].pending:
            return
        for seq in pair:
            seq.generated += 1
        if pair[0].generated >= pair[0].output:
            self.drop(pair, finished=True)
            return
        for seq, cache in zip(pair, (self.cache, self.twin), strict=True):
            seq.base, seq.decoding = seq.computed - cache.step, True
            cache.join(seq)

    def decode(self) -> None:
        decoding = [pair for pair in self.live if pair[0].decoding]
        step = self.cache.step
        most = min((pair[0].final - pair[0].base - step for pair in decoding), default=3)
        limit = self.rng.randrange(1, most + 1)
        steps = self.cache.horizon(limit)
        assert 0 <= steps <= limit
        if steps == 0:  # the last one in makes room, as in an engine
            self.drop(decoding[-1], finished=False)
            return
        self.cache.advance(steps)
        for _ in range(steps):
            assert self.twin.horizon(1) == 1, "a single step is refused that a stride takes"
            self.twin.advance(1)
        for pair in decoding:
            if pair[0].base + self.cache.step == pair[0].final:
                self.drop(pair, finished=True)

    def drop(self, pair: tuple[Sequence, Sequence], finished: bool) -> None:
        for seq, cache in zip(pair, (self.cache, self.twin), strict=True):
            if seq.decoding:
                tokens = seq.base + cache.step
                seq.generated += tokens - seq.computed
                seq.computed, seq.decoding = tokens, False
                cache.leave(seq)
            cache.release(seq, finished=finished)
            if not finished:
                seq.preemptions += 1
                seq.computed = 0
        self.live.remove(pair)
        if not finished:
            self.preempted.append(pair)

    def tokens(self) -> dict[int, int]:
        """Tokens that each sequence holds, by row."""
        return {s.row: s.base + self.cache.step if s.decoding else s.computed for s, _ in self.live}

    def compare(self) -> int:
        """All that the cache says of itself, against sums over its sequences and sweeps over its memory map.
        Returns the bytes moved since the last comparison."""
        cache, stats, taken = self.cache, self.cache.stats(), self.cache.memory_map()
        stats.check()
        cache.check()
        assert stats == self.twin.stats() and taken == self.twin.memory_map(), "stride and single steps differ"
        moved = cache.take_moved_bytes()
        assert moved == self.twin.take_moved_bytes()
        tokens = self.tokens()
        final = {s.row: s.final for s, _ in self.live}
        assert {row for _, _, row in taken} == set(tokens), "memory held by no sequence, or a sequence without memory"
        room = {row: (end - start) // cache.token_bytes for start, end, row in taken}
        assert stats.used == sum(tokens.values()) * cache.token_bytes
        assert stats.reserved == sum(min(room[r], final[r]) - tokens[r] for r in room) * cache.token_bytes
        assert stats.internal == sum(max(0, room[r] - final[r]) for r in room) * cache.token_bytes
        assert stats.free + stats.external == stats.pool - sum(end - start for start, end, _ in taken)
        edges = [(0, 0, -1), *taken, (cache.pool_bytes, 0, -1)]
        gap = max(b[0] - a[1] for a, b in pairwise(edges))
        if hasattr(cache.space, "holes"):
            assert stats.free == gap
        else:
            assert stats.free <= gap, "a buddy block is larger than the gap it lies in"
        return moved


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 32), pool=st.integers(40, 900))
def test_every_operation_of_short_walks(layout: str, seed: int, pool: int) -> None:
    walk = Walk(LAYOUTS[layout], seed, pool)
    for _ in range(60):
        before = {row: start for start, _, row in walk.cache.memory_map()}
        tokens = walk.tokens()
        walk.step()
        after = {row: start for start, _, row in walk.cache.memory_map()}
        moved = walk.compare()
        assert moved >= 10 * sum(tokens[row] for row in before.keys() & after if before[row] != after[row])
        assert moved == 0 or layout.startswith("fit")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_walk(layout: str) -> None:
    long_walk(layout, 75_000)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_longer_walk(layout: str) -> None:
    long_walk(layout, 300_000)


def long_walk(layout: str, operations: int) -> None:
    walk = Walk(LAYOUTS[layout], seed=operations)
    for i in range(operations):
        walk.step()
        if i % 50 == 0:
            walk.compare()
    while walk.live:
        walk.drop(walk.live[0], finished=True)
    walk.compare()
    assert walk.cache.space.free == walk.cache.pool_bytes, "bytes leaked"
    assert walk.rows > operations // 20, "the walk stood still"
