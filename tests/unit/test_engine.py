"""The engine against closed forms, and its ends: nothing hangs, whatever it is given."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.cache.none import NoCache
from kvsim.cache.paged import Paged
from kvsim.cost.shape import StepShape
from kvsim.engine.replay import replay
from kvsim.record import COMPLETED, REFUSED, Recorder
from kvsim.sched import SCHEDULERS
from kvsim.sched.base import Limits
from kvsim.trace.types import Trace, make_trace

MS = 1_000_000
SIMPLE = ["chunked", "prefill-first", "static"]


class Linear:
    """2 ms a step, 10 µs a prefill token, 100 ns a token attended."""

    def step(self, shape: StepShape) -> int:
        prefill = sum(tokens for tokens, _ in shape.chunks)
        return 2 * MS + 10_000 * prefill + 100 * sum(shape.attended)

    def decode_run(self, shape: StepShape, k: int) -> np.ndarray:
        return self.step(shape) + 100 * sum(shape.growing) * np.arange(k, dtype=np.int64)

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        return self.decode_run(shape, k).tolist()


def go(trace: Trace, scheduler: str = "chunked", blocks: int = 1000, **limits: int) -> Recorder:
    kv = Paged(blocks=blocks, block_size=16, token_bytes=4)
    return replay(trace, scheduler=SCHEDULERS.get(scheduler)(), limits=Limits(**limits), kv=kv, cost=Linear())


@pytest.mark.parametrize("scheduler", SIMPLE)
def test_one_request_alone_is_the_sum_of_its_steps(scheduler: str) -> None:
    record = go(make_trace("one", "test", [5 * MS], [100], [20]), scheduler)
    prefill = 2 * MS + 100 * 10_000
    decode = [2 * MS + 100 * (100 + i) for i in range(1, 20)]
    assert record.arrival_ns[0] == record.scheduled_ns[0] == 5 * MS
    assert record.first_token_ns[0] == 5 * MS + prefill
    assert record.last_token_ns[0] == 5 * MS + prefill + sum(decode)
    gaps, counts = record.itl()
    assert sorted(np.repeat(gaps, counts).tolist()) == decode


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_at_a_time_waits_like_m_d_1(load: float) -> None:
    """Poisson arrivals, one server, constant service D: mean wait = load · D / (2 (1 − load)) (Pollaczek-Khinchine)."""
    n, service = 60_000, 2 * MS + 10_000
    arrival = np.cumsum(np.random.default_rng(3).exponential(service / load, n)).astype(np.int64)
    record = go(make_trace("queue", "test", arrival, np.ones(n), np.ones(n)), sequences=1)
    columns = record.request_columns()
    wait = (columns["scheduled_ns"] - columns["arrival_ns"]).mean()
    assert wait == pytest.approx(load * service / (2 * (1 - load)), rel=0.05)


def test_the_same_step_costs_the_same_among_many() -> None:
    """All at once and equal: every step holds everyone, so all have the same times."""
    record = go(make_trace("batch", "test", np.zeros(8), np.full(8, 32), np.full(8, 5)), tokens=4096)
    assert len(set(record.first_token_ns)) == len(set(record.last_token_ns)) == 1
    assert record.engine_steps == 5


@pytest.mark.parametrize("scheduler", SIMPLE)
def test_nothing_to_do(scheduler: str) -> None:
    record = go(make_trace("empty", "test", [], [], []), scheduler)
    assert record.engine_steps == 0
    assert len(record.step_columns()["steps"]) == 0


@pytest.mark.parametrize("scheduler", SIMPLE)
def test_impossible_and_odd_requests_end(scheduler: str) -> None:
    """One that can never fit, no output at all, a prompt that fills the pool, an empty prompt, a lone token."""
    trace = make_trace("odd", "test", [0, 0, 1, 2, 3], [9_000, 50, 1_500, 0, 1], [10, 0, 90, 5, 1])
    record = go(trace, scheduler, blocks=100, tokens=256)
    status = record.request_columns()["status"].tolist()
    assert status == [REFUSED, COMPLETED, COMPLETED, REFUSED, COMPLETED]
    assert [record.reasons[record.requests["reason"][row]] for row in (0, 3)] == ["never_fits", "empty_prompt"]
    assert record.first_token_ns[1] == -1, "no token was asked for"
    assert record.last_token_ns[1] >= 0, "it ends with its prefill"


def test_children_of_the_refused_are_refused() -> None:
    trace = make_trace("chain", "test", [0, 0, 0, 0], [9_000, 10, 10, 10], [1, 1, 1, 1], parent=[-1, 0, 1, -1])
    record = go(trace, blocks=100)
    assert record.request_columns()["status"].tolist() == [REFUSED, REFUSED, REFUSED, COMPLETED]
    assert record.reasons == ["never_fits", "parent_refused"]


def test_a_follow_up_waits_for_its_answer_and_thinks() -> None:
    trace = make_trace("turns", "test", [0, 0], [10, 30], [3, 3], parent=[-1, 0], after_parent_ns=[0, 7 * MS])
    record = go(trace)
    assert record.arrival_ns[1] == record.last_token_ns[0] + 7 * MS


def test_memory_pressure_preempts_and_everyone_finishes() -> None:
    n = 12
    record = go(make_trace("tight", "test", np.zeros(n), np.full(n, 60), np.full(n, 90)), blocks=40)
    columns = record.request_columns()
    assert (columns["status"] == COMPLETED).all()
    assert columns["preemptions"].sum() > 0
    assert record.prefill_tokens + record.decode_tokens == n * 149 + record.recomputed_tokens


def test_without_a_cache_time_grows_with_every_token() -> None:
    trace = make_trace("uncached", "test", [0], [50], [10])
    kv = NoCache(pool_bytes=10_000, token_bytes=4)
    record = replay(trace, scheduler=SCHEDULERS.get("chunked")(), limits=Limits(), kv=kv, cost=Linear())
    assert record.prefill_tokens + record.decode_tokens == sum(50 + i for i in range(10))
    assert record.last_token_ns[0] == sum(2 * MS + 10_000 * (50 + i) for i in range(10))
