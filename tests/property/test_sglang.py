"""SGLang's scheduler under random loads: nothing is lost, everybody ends, whatever the settings."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.radix import RANKS
from kvsim.cache.radix_pool import Job, RadixPool
from kvsim.sched.sglang import Limits, Sglang


def load(rng: random.Random, requests: int) -> list[Job]:
    """Requests over a small vocabulary, many of which begin alike."""
    made: list[Job] = []
    for row in range(requests):
        past = rng.choice(made).key.tolist() if made and rng.random() < 0.6 else []
        prompt = past[: rng.randrange(len(past) + 1)][:60] + [rng.randrange(50) for _ in range(rng.randrange(1, 40))]
        output = rng.randrange(1, 40)
        key = np.array(prompt + [rng.randrange(50) for _ in range(output)], np.int64)
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
    )
    jobs = [job for job in load(rng, 25) if not engine.never_fits(job)]
    arrivals, finished, steps = list(reversed(jobs)), [], 0
    while len(finished) < len(jobs):
        while arrivals and rng.random() < 0.3:
            engine.add(arrivals.pop())
        batch = engine.schedule()
        if batch:
            assert sum(chunk.tokens for chunk in batch.chunks) > 0
            assert len({chunk.job for chunk in batch.chunks}) == len(batch.chunks)
        finished += engine.apply(batch)
        engine.check()
        steps += 1
        assert steps < 5000, "it stands still"
    assert all(job.generated == job.output and job.computed == job.final for job in jobs)
    assert engine.pool.free + engine.pool.evictable == engine.pool.tokens
