"""SGLang's scheduler under random loads: nothing is lost, everybody ends, whatever the settings."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.radix import RANKS, key_of, units_of
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.engine.decode_set import DecodeSet
from kvsim.sched.sglang import Limits, Sglang
from kvsim.validate.sglang_schedule import WatchedTree, leaf


def load(rng: random.Random, requests: int) -> list[Job]:
    """Requests over a small vocabulary, many of which begin alike."""
    made: list[Job] = []
    for row in range(requests):
        past = units_of(rng.choice(made).key) if made and rng.random() < 0.6 else []
        prompt = past[: rng.randrange(len(past) + 1)][:60] + [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        output = rng.randrange(1, 40)
        key = key_of(prompt + [rng.randrange(50) for _ in range(output)])
        spare = rng.choice([0, 0, 30])
        made.append(Job(row, len(prompt), output, key, max_new=output + spare, priority=rng.randrange(3)))
    return made


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), page=st.sampled_from([1, 4, 16]), eviction=st.sampled_from(sorted(RANKS)),
    policy=st.sampled_from(["fcfs", "lpm"]), priorities=st.booleans(), ignore_eos=st.booleans(),
    conservativeness=st.sampled_from([1.0, 0.3, 0.05]), tokens=st.integers(200, 600), chunk=st.integers(16, 80),
)
def test_everybody_ends_and_nothing_is_lost(
    seed: int, page: int, eviction: str, policy: str, priorities: bool, ignore_eos: bool, conservativeness: float,
    tokens: int, chunk: int,
) -> None:
    rng = random.Random(seed)
    engine = Sglang(
        RadixPool(tokens, page, eviction),
        Limits(max_running=6, chunk_tokens=chunk, max_prefill_tokens=128, policy=policy,  # type: ignore[arg-type]
               priorities=priorities, ignore_eos=ignore_eos, conservativeness=conservativeness),
        DecodeSet((0,)),
    )
    jobs = [job for job in load(rng, 25) if not engine.never_fits(job)]
    arrivals, finished, steps = list(reversed(jobs)), [], 0
    while len(finished) < len(jobs):
        while arrivals and rng.random() < 0.3:
            engine.add(arrivals.pop())
        batch = engine.schedule()
        if batch:
            assert (sum(chunk.tokens for chunk in batch.chunks) > 0) == (batch.kind == "extend")
            assert len({chunk.job for chunk in batch.chunks}) == len(batch.chunks)
        finished += engine.apply(batch)
        engine.check()
        steps += 1
        assert steps < 5000, "it stands still"
    assert all(job.generated == job.output and job.computed == job.final for job in jobs)
    assert engine.pool.free + engine.pool.evictable == engine.pool.tokens


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32), page=st.sampled_from([1, 4, 16]), eviction=st.sampled_from(sorted(RANKS)),
    conservativeness=st.sampled_from([1.0, 0.3, 0.05]), tokens=st.integers(200, 600),
)
def test_strides_decide_and_evict_what_steps_do(
    seed: int, page: int, eviction: str, conservativeness: float, tokens: int
) -> None:
    """Nothing is left to compare but what is decided: there is no clock here."""
    said = []
    for strides in (False, True):
        rng, arrive = random.Random(seed), random.Random(seed + 1)
        pool = RadixPool(tokens, page, eviction)
        pool.tree = tree = WatchedTree(page, eviction)
        limits = Limits(max_running=6, chunk_tokens=40, max_prefill_tokens=128, conservativeness=conservativeness)
        engine = Sglang(pool, limits, DecodeSet((0,)))
        jobs = [job for job in load(rng, 25) if not engine.never_fits(job)]
        arrivals = [(arrive.randrange(300), job) for job in jobs]
        arrivals.sort(key=lambda arrival: (arrival[0], arrival[1].row), reverse=True)
        facts: list[object] = []
        ended = step = 0
        while ended < len(jobs):
            while arrivals and arrivals[-1][0] <= step:
                engine.add(arrivals.pop()[1])
            batch = engine.schedule()
            facts += [(step, "retracted", job.row) for job in engine.retracted]
            taken = 1
            if strides and batch:
                taken = batch.steps
                if arrivals and batch.open:
                    taken = min(taken, arrivals[-1][0] - step)
                taken = rng.randrange(1, taken + 1)
            if batch and batch.chunks:
                chunks = [(job.row, start, tokens) for job, start, tokens in batch.chunks]
                facts.append((step, chunks, engine.estimate.ratio))
            half = rng.randrange(taken + 1) if strides else 0
            if half and half < taken:  # in two calls, as where the timeline looks at the state between
                assert not engine.apply(batch, half)
                taken -= half
                step += half
            finished = engine.apply(batch, taken)
            step += taken
            ended += len(finished)
            engine.check()
            if finished:
                ended_now = [job.row for job in finished]
                facts.append((step, ended_now, pool.free, engine.estimate.ratio, engine.pool.evicted))
        said.append((facts, [leaf(node) for node in tree.evicted]))
    assert said[0] == said[1]
