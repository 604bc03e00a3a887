"""Laws that must hold on any workload, whatever the policy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from costs import Constant

from kvsim.cache.build import Pool, build_cache
from kvsim.cache.policies import POLICIES
from kvsim.engine.replay import replay
from kvsim.precision import kv_bytes
from kvsim.record import COMPLETED, REFUSED, Recorder
from kvsim.sched.base import Limits
from kvsim.sched.chunked import Chunked
from kvsim.trace.types import Trace, make_trace


def workload(seed: int) -> tuple[Trace, list[list[tuple[int, int, int]]]]:
    rng = random.Random(seed)
    n = 60
    arrival = np.cumsum([int(rng.expovariate(1 / 4e6)) for _ in range(n)])
    prompt = [rng.randint(1, 400) for _ in range(n)]
    output = [rng.randint(1, 80) for _ in range(n)]
    chains = [[(rng.randrange(4), 0, min(8, tokens // 16))] if tokens >= 16 else [] for tokens in prompt]
    return make_trace("laws", "test", arrival, prompt, output), chains


def go(policy: str, tokens: int, seed: int) -> tuple[Recorder, Trace]:
    trace, chains = workload(seed)
    pool = Pool(bytes=tokens * 16, token_bytes=16, windows=(0,), max_model_len=1024, batch_tokens=256,
                activation_bytes=16)
    spec = POLICIES.get(policy)
    kv = build_cache(spec, pool, trace)
    record = replay(trace, scheduler=Chunked(), limits=Limits(16, 256), kv=kv, cost=Constant(), max_model_len=1024,
                    chains=chains.__getitem__ if spec.prefix != "off" else None, tier=spec.tier)
    kv.check()
    return record, trace


@pytest.mark.parametrize("seed", range(12))
def test_sharing_never_adds_work_without_preemption(seed: int) -> None:
    plain, shared = go("paged", 20_000, seed)[0], go("paged-prefix", 20_000, seed)[0]
    assert not plain.request_columns()["preemptions"].any()
    assert not shared.request_columns()["preemptions"].any()
    assert shared.prefill_tokens <= plain.prefill_tokens
    assert shared.decode_tokens == plain.decode_tokens


@pytest.mark.parametrize("policy", ["paged", "paged-prefix", "contiguous", "buddy", "best-fit", "streaming", "snapkv"])
def test_a_larger_pool_never_refuses_more(policy: str) -> None:
    for seed in range(4):
        refused = [int((go(policy, tokens, seed)[0].request_columns()["status"] == REFUSED).sum())
                   for tokens in (256, 512, 1024, 4096)]
        assert refused == sorted(refused, reverse=True), (seed, refused)


def test_int8_holds_nearly_twice_the_tokens() -> None:
    for head_dim, ratio in ((64, 1.93), (128, 1.96), (256, 1.98)):
        assert kv_bytes("bf16", 8, head_dim) / kv_bytes("int8", 8, head_dim) >= ratio


@pytest.mark.parametrize("policy", ["paged", "paged-prefix", "streaming", "h2o", "snapkv", "paged-offload"])
def test_every_token_is_computed_once_and_again_only_after_preemption(policy: str) -> None:
    """Computed = what had to be + what preemption made again − what the cache gave. So preempted work is told apart
    and never counts as throughput, which counts tokens of completed requests."""
    for seed in range(6):
        record, trace = go(policy, 700, seed)
        columns = record.request_columns()
        done = columns["status"] == COMPLETED
        needed = int((trace.prompt_tokens + trace.output_tokens - 1)[done].sum())
        computed = record.prefill_tokens + record.decode_tokens
        assert computed - record.recomputed_tokens <= needed
        if policy not in ("paged-prefix", "paged-offload"):
            assert computed - record.recomputed_tokens == needed
        assert record.recomputed_tokens == columns["recomputed_tokens"].sum()


def test_uncached_computes_every_prefix_again() -> None:
    """prompt p and n outputs compute Σ (p + i), i = 0 … n − 1, exactly."""
    for seed in range(4):
        record, trace = go("uncached", 100_000, seed)
        p, n = trace.prompt_tokens, trace.output_tokens
        assert record.prefill_tokens + record.decode_tokens == int((n * p + n * (n - 1) // 2).sum())
