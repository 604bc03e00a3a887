"""Memory runs out in odd places: while somebody loads, alone, under a cap."""

from __future__ import annotations

import pytest
from costs import Constant

from kvsim.cache.base import Sequence
from kvsim.cache.paged import Paged
from kvsim.cache.retained import Retained
from kvsim.cache.retention import parse_retention
from kvsim.cache.tier import Tier
from kvsim.cache.tiered import Tiered
from kvsim.engine.decode_set import NEVER, DecodeSet
from kvsim.engine.replay import replay
from kvsim.record import COMPLETED, REFUSED, Recorder
from kvsim.sched.base import Limits, State
from kvsim.sched.chunked import Chunked
from kvsim.trace.types import make_trace

WINDOW = parse_retention("window:sinks=4,recent=60")


def test_who_is_admitted_and_loads_takes_memory_from_the_stride() -> None:
    """It has no chunk, but its blocks are no longer there for those that decode."""
    kv = Tiered(Paged(blocks=4, block_size=4, token_bytes=1), Tier(1000), swap=True)
    state = State(DecodeSet((0,)), kv, Limits(), NEVER)
    first, second = Sequence(0, 4, 12), Sequence(1, 8, 2)
    assert kv.admit(first, 4)
    first.computed = first.base = 4
    first.generated = first.admitted = 1
    kv.join(first)
    state.decode.join(first)
    kv.receive(second, 7)
    state.waiting.arrive(second)

    plan = Chunked().plan(state)
    assert (plan.admitted, plan.chunks, state.loading) == ([second], [], 1)
    left = plan.steps - plan.taken
    assert kv.horizon(left) == left


def run_alone(blocks: int, prompt: int, output: int, asynchronous: bool = False, **limits: int | bool) -> Recorder:
    """One request in a window of 64 tokens, in so many blocks of 16."""
    kv = Retained(blocks=blocks, block_size=16, token_bytes=1, retention=WINDOW)
    trace = make_trace("t", "t", [0], [prompt], [output])
    return replay(trace, scheduler=Chunked(), limits=Limits(**limits), kv=kv, cost=Constant(), windows=(WINDOW.cap,),
                  asynchronous=asynchronous)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_gives_way_alone_again_and_again_is_refused(asynchronous: bool) -> None:
    """The cap fits, the cap and a chunk of the prompt does not: it would start again for ever."""
    record = run_alone(5, 300, 5, asynchronous, tokens=24)
    assert record.request_columns()["status"].tolist() == [REFUSED]
    assert record.reasons == ["never_fits"]
    assert run_alone(6, 300, 5, asynchronous, tokens=24).request_columns()["status"].tolist() == [COMPLETED]


def test_room_for_a_whole_answer_is_room_for_what_is_kept_of_it() -> None:
    """TensorRT-LLM's guarantee: a request whose answer outgrows the pool, but not its window, runs."""
    record = run_alone(5, 30, 500, reserve_output=True)
    assert record.request_columns()["status"].tolist() == [COMPLETED]


def test_a_whole_prompt_that_a_window_passes_over_need_not_fit() -> None:
    """Admission by whole prompts asks for what is held of one at once: the window and a chunk."""
    for blocks, status in ((5, REFUSED), (6, COMPLETED)):
        record = run_alone(blocks, 300, 5, tokens=24, whole_prompt=True)
        assert record.request_columns()["status"].tolist() == [status]


def test_who_loads_waits_for_room_for_the_rest_too() -> None:
    """Else two would load in turn into the room that the other needs for its next tokens, and give way, for ever."""
    kv = Tiered(Paged(blocks=10, block_size=1, token_bytes=1), Tier(1000), swap=True)
    other, seq = Sequence(0, 3, 1), Sequence(1, 9, 1)
    assert kv.admit(other, 3)
    other.computed = 3
    kv.receive(seq, 6)
    assert not kv.admit(seq, 0), "six tokens would fit, the three behind them not"
    kv.release(other, finished=True)
    assert kv.admit(seq, 0)
    assert seq.computed == 6
