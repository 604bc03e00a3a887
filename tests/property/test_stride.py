"""Strides change nothing: max_stride 1, 7 and unbounded give the same run, to the nanosecond and the byte."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from simpy import Environment

from kvsim.cache.base import Allocator
from kvsim.cache.buddy import Buddy
from kvsim.cache.fit import Fit
from kvsim.cache.hybrid import Hybrid
from kvsim.cache.none import NoCache
from kvsim.cache.oracle import Oracle
from kvsim.cache.paged import Paged
from kvsim.cache.prefix import PrefixPaged
from kvsim.cache.radix import RANKS
from kvsim.cache.radix_pool import RadixPool
from kvsim.cache.ranked import RankedPrefix
from kvsim.cache.reserve import Reserve
from kvsim.cache.retained import Retained
from kvsim.cache.retention import parse_retention
from kvsim.cache.tier import Tier
from kvsim.cache.tiered import Tiered
from kvsim.cost.shape import StepShape
from kvsim.engine.decode_set import NEVER
from kvsim.engine.interfaces import Source
from kvsim.engine.replay import drive, replay
from kvsim.engine.sglang_replica import SglangReplica
from kvsim.record import Recorder
from kvsim.sched import SCHEDULERS, sglang
from kvsim.sched.base import Limits
from kvsim.trace.transform import sample
from kvsim.trace.types import Trace, make_trace

TOKEN = 1000  # bytes


class LinearCost:
    """A cost model with the right shape and no table: enough to move a clock."""

    def step(self, shape: StepShape) -> int:
        prefill = sum(tokens * (2000 + context) for tokens, context in shape.chunks)
        decode = 1500 * shape.decode + 11 * sum(shape.attended) + 7 * sum(shape.longest)
        return 2_000_000 + decode + prefill + shape.moved_bytes // 50 + 3 * shape.scored

    def decode_run(self, shape: StepShape, k: int) -> np.ndarray:
        slope = 11 * sum(shape.growing) + 7 * sum(shape.longest_grows) + (3 * shape.growing[0] if shape.scored else 0)
        run = self.step(shape) + slope * np.arange(k, dtype=np.int64)
        run[1:] -= shape.moved_bytes // 50
        return run

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        return self.decode_run(shape, k).tolist()


def layout(name: str, tokens: int, max_len: int) -> Allocator:
    pool = {"pool_bytes": tokens * TOKEN, "token_bytes": TOKEN}
    blocks = {"blocks": tokens // 16, "block_size": 16, "token_bytes": TOKEN}
    contiguous = {"reserve": Reserve, "oracle": Oracle, "buddy": Buddy, "fit": Fit}
    if name in contiguous:
        return contiguous[name](**pool, max_model_len=max_len)
    match name:
        case "none":
            return NoCache(**pool)
        case "paged":
            return Paged(**blocks)
        case "paged-prefix":
            return PrefixPaged(**blocks)
        case "forks" | "forks-prefix":
            return PrefixPaged(**blocks, reuse=name == "forks-prefix", forks=True)
        case "fifo" | "lfu":
            return RankedPrefix(**blocks, order=name)
        case "hybrid" | "hybrid-prefix":
            shape = {**blocks, "blocks": 2 * tokens // 16, "token_bytes": TOKEN // 2}
            return Hybrid(**shape, windows=(0, 40), prefix=name == "hybrid-prefix")
    if name == "swap":
        return Tiered(layout("paged", tokens, max_len), TIER, swap=True)
    if name == "offload":
        return Tiered(layout("paged-prefix", tokens, max_len), TIER, swap=True)
    if name in RETENTIONS:
        return Retained(**blocks, retention=parse_retention(RETENTIONS[name]))
    raise AssertionError(name)


def random_trace(rng: random.Random) -> tuple[Trace, list]:
    n = rng.randint(1, 40)
    gap = rng.choice([0, 5e6, 50e6, 400e6])
    arrival = np.cumsum([int(rng.expovariate(1 / gap)) if gap else 0 for _ in range(n)])
    prompt = [rng.choice([1, 15, 16, 17, rng.randint(1, 300)]) for _ in range(n)]
    output = [rng.choice([0, 1, 2, 16, rng.randint(1, 120)]) for _ in range(n)]
    parent = [rng.randrange(i) if i and rng.random() < 0.3 else -1 for i in range(n)]
    think = [rng.choice([0, int(rng.expovariate(1e-8))]) for _ in range(n)]
    priority = [rng.choice([0, 0, 1, 3]) for _ in range(n)]
    chains = [[(rng.randrange(3), 0, min(4, prompt[i] // 16))] if prompt[i] >= 16 else [] for i in range(n)]
    chains = [[part for part in chain if part[2]] for chain in chains]
    columns = {"parent": parent, "after_parent_ns": think, "priority": priority}
    return make_trace("random", "test", arrival, prompt, output, **columns), chains


def facts(record: Recorder) -> dict:
    gaps, counts = record.itl()
    gap, at = np.unique(gaps, return_inverse=True)
    return {
        **{f"request.{k}": v.tolist() for k, v in record.request_columns().items()},
        **{f"timeline.{k}": v.tolist() for k, v in record.timeline_columns().items()},
        "itl": dict(zip(gap.tolist(), np.bincount(at, counts, len(gap)).astype(int).tolist(), strict=True)),
        "reasons": record.reasons, "steps": record.engine_steps,
        "tokens": (record.prefill_tokens, record.decode_tokens, record.recomputed_tokens),
    }


RETENTIONS = {"window": "window:sinks=4,recent=60", "h2o": "heavy_hitter:budget=50,recent=20",
              "snapkv": "snapkv:budget=40,observe=8"}
def check_gaps(trace: Trace, record: Recorder) -> None:
    """Every pair of neighbouring tokens of every completed request is one gap, and the gaps add up to its time."""
    columns = record.request_columns()
    done = (columns["status"] == 0) & (trace.output_tokens > 0)
    gaps, counts = record.itl()
    assert counts.sum() == (trace.output_tokens[done] - 1).sum()
    assert (np.bincount(np.unique(gaps, return_inverse=True)[1], counts) > 0).all()
    assert (gaps * counts).sum() == (columns["last_token_ns"] - columns["first_token_ns"])[done].sum()


TIER = Tier(400 * TOKEN, 2 * 10**9, 7001)
LAYOUTS = [
    *RETENTIONS, "none", "reserve", "oracle", "buddy", "fit", "paged", "paged-prefix", "hybrid", "hybrid-prefix",
    "swap", "offload", "fifo", "lfu", "forks", "forks-prefix",
]


@pytest.mark.parametrize("scheduler", ["chunked", "prefill-first", "static"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_stride_gives_the_same_run(scheduler: str, name: str) -> None:
    for seed in range(25):
        rng = random.Random(f"{scheduler}{name}{seed}")
        trace, chains = random_trace(rng)
        if name.startswith("forks"):
            trace = sample(trace, 3)
            chains = [chain for chain in chains for _ in range(3)]
        longest = int((trace.prompt_tokens + trace.output_tokens).max())
        tokens = rng.choice([longest + 16, 2 * longest, 5000])
        limits = Limits(sequences=rng.choice([1, 3, 16]), tokens=rng.choice([8, 64, 512]), chunk=rng.choice([0, 0, 24]),
                        whole_prompt=rng.random() < 0.5, priority=rng.random() < 0.2,
                        reserve_output=rng.random() < 0.2)
        windows = rng.choice([(0,), (0, 40), (64,)])
        if name in RETENTIONS:
            cap = parse_retention(RETENTIONS[name]).cap
            windows = tuple(min(w or cap, cap) for w in windows)
        asynchronous = rng.random() < 0.4
        runs = {}
        for stride in (1, 7, NEVER):
            kv = layout(name, tokens, longest)
            record = replay(trace, scheduler=SCHEDULERS.get(scheduler)(), limits=limits, kv=kv, cost=LinearCost(),
                            windows=windows, chains=chains.__getitem__, max_stride=stride, tier=TIER,
                            asynchronous=asynchronous, forks=name.startswith("forks"))
            kv.check()
            runs[stride] = facts(record)
            check_gaps(trace, record)
            assert kv.stats().used == 0
        for stride in (7, NEVER):
            for key, value in runs[1].items():
                assert runs[stride][key] == value, (seed, stride, key)


def crowd(rng: random.Random) -> tuple[Trace, list]:
    """Short prompts and long answers, all at about the same time: what runs outgrows a small pool."""
    n = rng.randint(20, 40)
    arrival = np.cumsum([rng.randrange(2_000_000) for _ in range(n)])
    prompt = [rng.randint(16, 60) for _ in range(n)]
    output = [rng.randint(30, 120) for _ in range(n)]
    priority = [rng.choice([0, 0, 1]) for _ in range(n)]
    chains = [[(rng.randrange(9), 0, 1)] for _ in range(n)]
    return make_trace("crowd", "test", arrival, prompt, output, priority=priority), chains


def kept(build: partial, replicas: list[SglangReplica], env: Environment, source: Source, recorder: Recorder):
    replicas.append(build(env, source=source, recorder=recorder))
    return replicas[0]


@pytest.mark.parametrize("eviction", RANKS)
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_any_stride_of_sglang_gives_the_same_run(policy: str, eviction: str) -> None:
    retracted = evicted = 0
    for seed in range(25):
        rng = random.Random(f"{policy}{eviction}{seed}")
        crowded = seed % 3 == 0
        trace, chains = crowd(rng) if crowded else random_trace(rng)
        longest = int((trace.prompt_tokens + trace.output_tokens).max())
        page = rng.choice([1, 4, 16])
        tokens = 600 if crowded else rng.choice([longest + 40, 2 * longest, 5000])
        limits = sglang.Limits(
            max_running=16 if crowded else rng.choice([1, 3, 16]), chunk_tokens=rng.choice([16, 64, 512]),
            max_prefill_tokens=600, policy=policy, priorities=rng.random() < 0.2,
            ignore_eos=not crowded and rng.random() < 0.2,
            conservativeness=0.01 if crowded else rng.choice([1.0, 0.3]),
        )
        windows = rng.choice([(0,), (0, 40), (64,)])
        runs = {}
        for stride in (1, 7, NEVER):
            pool = RadixPool(tokens, page, eviction, unit=page)
            build = partial(SglangReplica, pool=pool, limits=limits, token_bytes=TOKEN, cost=LinearCost(),
                            windows=windows, max_stride=stride)
            replicas = []
            record = drive(trace, partial(kept, build, replicas), chains=chains.__getitem__)
            replicas[0].engine.check()
            runs[stride] = facts(record) | {"evicted": pool.evicted, "map": record.map_columns()["row"].tolist()}
            check_gaps(trace, record)
            assert pool.free + pool.evictable == pool.tokens
            assert record.step_columns()["steps"].max(initial=0) <= stride
        retracted += sum(runs[1]["request.preemptions"])
        evicted += runs[1]["evicted"]
        for stride in (7, NEVER):
            for key, value in runs[1].items():
                assert runs[stride][key] == value, (seed, stride, key)
    assert retracted and evicted > 1000
