"""Random walks over the paged caches: against a block-by-block model, with every invariant checked on the way."""

from __future__ import annotations

import os
import random
from collections import deque
from typing import Any

import pytest

from kvsim.cache.base import Allocator, Sequence
from kvsim.cache.hybrid import Hybrid
from kvsim.cache.paged import Paged
from kvsim.cache.prefix import PrefixPaged
from kvsim.cache.ranked import RankedPrefix
from kvsim.cache.retained import Retained
from kvsim.cache.retention import parse_retention
from kvsim.cache.tier import Tier
from kvsim.cache.tiered import Tiered

SIZE = 4
"""tokens a block: small, so that boundaries are met all the time"""
STEPS = int(os.environ.get("KVSIM_WALK_STEPS", "6000"))


class NaivePrefix:
    """vLLM's block pool block by block: one queue of free blocks, content → physical blocks, a table a sequence."""

    def __init__(self, blocks: int) -> None:
        self.queue = deque(range(blocks))
        self.content: dict[int, Any] = {}
        self.where: dict[Any, list[int]] = {}
        self.refs = [0] * blocks
        self.tables: dict[Sequence, list[int]] = {}
        self.evicted = 0

    @staticmethod
    def key(seq: Sequence, block: int) -> Any:
        for id, first, count in seq.chain or ():
            if first <= block < first + count:
                return id, block
        return -2 - seq.row, block

    def match(self, seq: Sequence) -> list[int]:
        found = []
        for block in range((seq.tokens - 1) // SIZE):
            copies = self.where.get(self.key(seq, block))
            if not copies:
                break
            found.append(copies[0])
        return found

    def admit(self, seq: Sequence, tokens: int) -> bool:
        found = self.match(seq)
        need = -(-(len(found) * SIZE + tokens) // SIZE) - len(found)
        if need > len(self.queue) - sum(self.refs[block] == 0 for block in found):
            return False
        for block in found:
            if self.refs[block] == 0:
                self.queue.remove(block)
            self.refs[block] += 1
        self.tables[seq] = list(found)
        self.fill(seq, len(found) * SIZE + tokens)
        return True

    def grow(self, seq: Sequence, upto: int) -> bool:
        if -(-upto // SIZE) - len(self.tables[seq]) > len(self.queue):
            return False
        self.fill(seq, upto)
        return True

    def fill(self, seq: Sequence, upto: int) -> None:
        table = self.tables[seq]
        while len(table) * SIZE < upto:
            block = self.queue.popleft()
            if block in self.content:
                self.evicted += 1
                copies = self.where[self.content[block]]
                copies.remove(block)
                if not copies:
                    del self.where[self.content[block]]
                del self.content[block]
            self.refs[block] = 1
            table.append(block)
        for at in range(upto // SIZE):
            block = table[at]
            if block not in self.content:
                self.content[block] = self.key(seq, at)
                self.where.setdefault(self.content[block], []).append(block)

    def release(self, seq: Sequence) -> None:
        for block in reversed(self.tables.pop(seq)):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                if block in self.content:
                    self.queue.append(block)
                else:
                    self.queue.appendleft(block)


class Walk:
    """Drives a cache as an engine would, without time: admit, prefill in chunks, decode, preempt, finish."""

    def __init__(self, kv: Allocator, seed: object, naive: NaivePrefix | None = None) -> None:
        self.kv, self.naive = kv, naive
        self.rng = random.Random(repr(seed))
        self.rows = 0
        self.outside: list[Sequence] = []
        self.partial: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.operations = 0

    def new(self) -> Sequence:
        rng = self.rng
        self.rows += 1
        prompt, output = rng.randint(1, 60), rng.randint(1, 40)
        document = rng.randrange(6)
        lengths = random.Random(document)
        chain, at = [], 0
        for part in range(4):
            count = min(lengths.randint(1, 5), prompt // SIZE - at)
            if count <= 0:
                break
            chain.append((document * 10 + part, at, count))
            at += count
        return Sequence(self.rows, prompt, output, chain=chain if rng.random() < 0.8 else None)

    def step(self) -> None:
        self.operations += 1
        choice = self.rng.random()
        if choice < 0.35:
            self.admit()
        elif choice < 0.55 and self.partial:
            self.prefill(self.rng.choice(self.partial))
        elif choice < 0.93 and self.decoding:
            self.decode()
        elif self.partial or self.decoding:
            self.preempt(self.rng.choice(self.partial + self.decoding))

    def admit(self) -> None:
        back = bool(self.outside) and self.rng.random() < 0.5
        seq = self.outside.pop(self.rng.randrange(len(self.outside))) if back else self.new()
        if self.kv.never_fits(seq):
            return
        hit = self.kv.match(seq)
        if self.naive:
            assert hit == len(self.naive.match(seq)) * SIZE
        assert hit < seq.tokens
        tokens = 0 if self.kv.loads(seq) else self.rng.randint(1, seq.tokens - hit)
        fits = self.kv.admit(seq, tokens)
        if self.naive:
            assert self.naive.admit(seq, tokens) == fits
        if not fits:
            self.outside.append(seq)
            return
        assert seq.computed == hit
        seq.computed += tokens
        self.sample(seq) if seq.pending == 0 else self.partial.append(seq)

    def prefill(self, seq: Sequence) -> None:
        tokens = self.rng.randint(1, seq.pending)
        fits = self.kv.grow(seq, tokens)
        if self.naive:
            assert self.naive.grow(seq, seq.computed + tokens) == fits
        if not fits:
            return
        seq.computed += tokens
        if seq.pending == 0:
            self.partial.remove(seq)
            self.sample(seq)

    def sample(self, seq: Sequence) -> None:
        seq.generated += 1
        if seq.generated == seq.output:
            self.release(seq, finished=True)
            return
        seq.base = seq.computed - self.kv.step
        self.kv.join(seq)
        seq.decoding = True
        self.decoding.append(seq)

    def decode(self) -> None:
        left = min(seq.prompt + seq.output - 1 - seq.base for seq in self.decoding) - self.kv.step
        steps = self.kv.horizon(self.rng.randint(1, left))
        if steps == 0:
            self.preempt(self.rng.choice(self.decoding))
            return
        if self.naive:
            for step in range(self.kv.step, self.kv.step + steps):
                for seq in self.decoding:
                    assert self.naive.grow(seq, seq.base + step + 1)
        self.kv.advance(steps)
        for seq in [s for s in self.decoding if s.prompt + s.output - 1 - s.base == self.kv.step]:
            self.stop(seq)
            self.release(seq, finished=True)

    def stop(self, seq: Sequence) -> None:
        seq.computed = seq.base + self.kv.step
        seq.generated = seq.computed + 1 - seq.prompt
        seq.decoding = False
        self.decoding.remove(seq)
        self.kv.leave(seq)

    def preempt(self, seq: Sequence) -> None:
        if seq in self.decoding:
            self.stop(seq)
        else:
            self.partial.remove(seq)
        self.kv.preempting(seq, seq.computed)
        self.release(seq, finished=False)
        seq.computed = 0
        self.outside.append(seq)

    def release(self, seq: Sequence, *, finished: bool) -> None:
        self.kv.release(seq, finished=finished)
        if self.naive:
            self.naive.release(seq)

    def run(self, steps: int, every: int) -> None:
        for count in range(steps):
            self.step()
            self.kv.stats().check()
            self.kv.take_transfers()
            self.kv.take_moved_bytes()
            if self.naive:
                assert isinstance(self.kv, PrefixPaged)
                assert self.kv.free == len(self.naive.queue)
                assert self.kv.evicted_blocks == self.naive.evicted
            if count % every == 0:
                self.kv.check()
        for seq in [*self.partial, *self.decoding]:
            self.preempt(seq)
        self.kv.check()
        stats = self.kv.stats()
        assert stats.used == stats.reserved == 0, f"something leaked: {stats}"
        assert stats.external == 0


POOL: dict[str, Any] = {"blocks": 60, "block_size": SIZE, "token_bytes": 8}
CACHES = {
    "paged": lambda: Paged(**POOL),
    "prefix": lambda: PrefixPaged(**POOL, unusable=1),
    "fifo": lambda: RankedPrefix(**POOL, order="fifo"),
    "lfu": lambda: RankedPrefix(**POOL, order="lfu"),
    "window": lambda: Retained(**POOL, retention=parse_retention("window:sinks=2,recent=13")),
    "h2o": lambda: Retained(**POOL, retention=parse_retention("heavy_hitter:budget=14,recent=5")),
    "snapkv": lambda: Retained(**POOL, retention=parse_retention("snapkv:budget=11,observe=3")),
    "hybrid": lambda: Hybrid(blocks=140, block_size=SIZE, token_bytes=8, windows=(0, 10, 10), prefix=True),
    "hybrid-plain": lambda: Hybrid(blocks=140, block_size=SIZE, token_bytes=8, windows=(0, 10), prefix=False),
    "swap": lambda: Tiered(Paged(**POOL), Tier(60 * SIZE * 8), swap=True),
    "offload": lambda: Tiered(PrefixPaged(**POOL), Tier(90 * SIZE * 8), swap=True),
}


@pytest.mark.parametrize("name", CACHES)
def test_walk_keeps_every_invariant(name: str) -> None:
    Walk(CACHES[name](), name).run(STEPS, every=7)


@pytest.mark.slow
@pytest.mark.parametrize("name", CACHES)
def test_long_walk(name: str) -> None:
    Walk(CACHES[name](), name).run(10 * STEPS, every=500)


@pytest.mark.parametrize("blocks", [30, 60, 200])
def test_runs_equal_blocks(blocks: int) -> None:
    """The cache of runs finds, holds and evicts exactly what the model of single blocks does."""
    kv = PrefixPaged(blocks=blocks, block_size=SIZE, token_bytes=8)
    Walk(kv, blocks, NaivePrefix(blocks)).run(STEPS, every=50)
    assert kv.evicted_blocks > STEPS // 10, "the walk never ran out of memory, so it showed nothing"
