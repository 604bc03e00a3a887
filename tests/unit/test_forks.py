"""Parallel sampling: several answers to one prompt, forked where the engine can, else requests of their own."""

from __future__ import annotations

import numpy as np
import pytest
from costs import Constant

from kvsim.cache.prefix import PrefixPaged
from kvsim.engine.replay import replay
from kvsim.record import COMPLETED
from kvsim.sched.base import Limits
from kvsim.sched.prefill_first import PrefillFirst
from kvsim.trace.chain import runs
from kvsim.trace.transform import sample
from kvsim.trace.types import FORK, make_trace

SIZE = 16


def cache(blocks: int, reuse: bool = False) -> PrefixPaged:
    return PrefixPaged(blocks=blocks, block_size=SIZE, token_bytes=2, reuse=reuse, forks=True)


def test_rows_of_samples() -> None:
    trace = make_trace("t", "t", [0, 5], [40, 10], [3, 2], parent=[-1, 0], after_parent_ns=[0, 7])
    both = sample(trace, 2)
    assert both.parent.tolist() == [-1, 0, 0, 2]
    assert both.after_parent_ns.tolist() == [0, FORK, 7, FORK]
    assert runs(both, 0, SIZE) == runs(both, 1, SIZE) == [(0, 0, 2)], "all answers begin with the prompt"
    assert sample(trace, 1) is trace


def test_ids_of_the_answer_stay_with_the_first() -> None:
    trace = make_trace("t", "t", [0], [32], [32], block_ids=np.array([7, 8]), block_start=np.array([0, 2]),
                       block_end=np.array([32, 64]), block_rule="extent")
    both = sample(trace, 2)
    assert [both.blocks(row).tolist() for row in (0, 1)] == [[7, 8], [7]]


@pytest.mark.parametrize("prompt", [32, 37])
def test_forks_share_full_blocks_and_copy_the_last(prompt: int) -> None:
    """n answers: the prompt is computed once, its full blocks are held once, its partial one n times."""
    n, output = 4, 6
    trace = sample(make_trace("t", "t", [0], [prompt], [output]), n)
    moved: list[int] = []

    class Watched(PrefixPaged):
        def take_moved_bytes(self) -> int:
            moved.append(super().take_moved_bytes())
            return moved[-1]

    kv = Watched(blocks=100, block_size=SIZE, token_bytes=2, forks=True)
    seen = []
    record = replay(trace, scheduler=PrefillFirst(), limits=Limits(), kv=kv, cost=Constant(), forks=True, max_stride=1,
                    watch=lambda replica, plan: seen.append(kv.free))
    assert (record.request_columns()["status"] == COMPLETED).all()
    assert record.prefill_tokens == prompt
    assert record.decode_tokens == n * (output - 1)
    full, tail = divmod(prompt, SIZE)
    assert sum(moved) == (n - 1) * tail * 2
    assert min(seen) == 100 - full - n, "one block of its own for each answer"
    assert len(set(record.first_token_ns)) == 1
    kv.check()
    assert kv.free == 100


def test_without_room_an_answer_computes_its_own_prompt() -> None:
    trace = sample(make_trace("t", "t", [0], [20], [10]), 3)
    kv = cache(3)
    record = replay(trace, scheduler=PrefillFirst(), limits=Limits(), kv=kv, cost=Constant(), forks=True)
    assert (record.request_columns()["status"] == COMPLETED).all()
    assert record.prefill_tokens > 20
    kv.check()


def test_an_engine_that_cannot_fork_shares_through_its_prefix_cache() -> None:
    trace = sample(make_trace("t", "t", [0], [40], [5]), 3)
    kv = PrefixPaged(blocks=50, block_size=SIZE, token_bytes=2)
    record = replay(trace, scheduler=PrefillFirst(), limits=Limits(), kv=kv, cost=Constant(),
                    chains=lambda row: runs(trace, row, SIZE))
    assert record.prefill_tokens == 40 + 2 * (40 - 32)
