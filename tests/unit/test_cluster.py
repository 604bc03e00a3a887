"""Clusters: one replica is one replica, every router loses nothing, and what fails, scales and hands over adds up."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from kvsim.cli import main
from kvsim.cluster import ROUTERS, Autoscale, Failures
from kvsim.cluster.routers.session import mixed
from kvsim.errors import InputError
from kvsim.fleet import run_fleet
from kvsim.record import COMPLETED, FAILED, REFUSED, Recorder
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import chains, simulate
from kvsim.simulate import check as refuse
from kvsim.trace.types import Trace, make_trace

BASE = Scenario(trace="made", model="llama-3.2-1b", device="l4", policy="paged-prefix", max_model_len=2048,
                max_num_seqs=8, max_num_batched_tokens=512, interval=False)


def traffic(seed: int, n: int = 120, gap: float = 3e7) -> Trace:
    """Requests with shared prefixes and follow-ups with and without think time."""
    rng = random.Random(seed)
    arrival = np.cumsum([int(rng.expovariate(1 / gap)) for _ in range(n)])
    prompt = [rng.choice([16, 17, rng.randint(64, 900)]) for _ in range(n)]
    output = [rng.choice([0, 1, 2, rng.randint(1, 80)]) for _ in range(n)]
    parent = [rng.randrange(i) if i and rng.random() < 0.3 else -1 for i in range(n)]
    session = list(range(n))
    for i, p in enumerate(parent):
        session[i] = session[p] if p >= 0 else i
    think = [rng.choice([0, rng.randint(1, 10**9)]) for _ in range(n)]
    count = [min(3, p // 64) for p in prompt]
    family = [rng.randrange(4) for _ in range(n)]
    ids = np.array([7 * f + j for f, c in zip(family, count, strict=True) for j in range(c)], np.int64)
    return make_trace(
        "made", "test", arrival, prompt, output, parent=parent, after_parent_ns=think, session=session,
        block_size=64, block_rule="floor", block_ids=ids, block_start=np.concatenate([[0], np.cumsum(count)]),
    )


def fleet(trace: Trace, **fields: object) -> tuple[Recorder, dict[str, int]]:
    setup = prepare(BASE.replace(**fields))
    how = {"max_model_len": setup.memory.max_model_len, "chains": chains(trace, setup.spec),
           "progress": None, "stop": None}
    return run_fleet(trace, [(setup, setup.cost, setup.scenario.replicas)], how)


def facts(record: Recorder) -> dict[str, object]:
    gaps, counts = record.itl()
    gap, at = np.unique(gaps, return_inverse=True)
    return {**{name: column.tolist() for name, column in record.request_columns().items() if name != "replica"},
            **{f"timeline.{name}": column.tolist() for name, column in record.timeline_columns().items()},
            "itl": dict(zip(gap.tolist(), np.bincount(at, counts).tolist(), strict=True)), "steps": record.engine_steps}


def check(trace: Trace, record: Recorder) -> dict[str, np.ndarray]:
    """Everyone ended once, in order, and nobody came before the one it waits for had ended."""
    columns = record.request_columns()
    done = columns["status"] == COMPLETED
    assert (columns["scheduled_ns"] >= columns["arrival_ns"])[done].all()
    talks = done & (trace.output_tokens > 0)
    assert (columns["first_token_ns"] > columns["scheduled_ns"])[talks].all()
    assert (columns["last_token_ns"] >= columns["first_token_ns"])[talks].all()
    waits = done & (trace.parent >= 0)
    parent = trace.parent[waits]
    assert (columns["arrival_ns"][waits] == columns["last_token_ns"][parent] + trace.after_parent_ns[waits]).all()
    return columns


@pytest.mark.parametrize("policy", ["paged-prefix", "contiguous", "radix", "uncached"])
def test_one_replica_behind_a_router_is_one_replica(policy: str) -> None:
    engine = "sglang" if policy == "radix" else "vllm-1"
    for seed in range(6):
        trace = traffic(seed)
        setup = prepare(BASE.replace(policy=policy, engine=engine))
        alone, _ = simulate(trace, setup, setup.cost)
        for router in ("round-robin", "kv-aware"):
            behind, _ = fleet(trace, policy=policy, engine=engine, router=router)
            for name, value in facts(alone).items():
                assert facts(behind)[name] == value, (seed, router, name)


@pytest.mark.parametrize("router", ROUTERS.names())
@pytest.mark.parametrize("seed", range(3))
def test_every_router_serves_everyone_the_same_way_twice(router: str, seed: int) -> None:
    trace = traffic(seed)
    record, _ = fleet(trace, replicas=3, router=router)
    columns = check(trace, record)
    assert (columns["status"] == COMPLETED).all() and set(columns["replica"]) == {0, 1, 2}
    assert record.itl()[1].sum() == np.maximum(trace.output_tokens - 1, 0).sum()
    assert facts(fleet(trace, replicas=3, router=router)[0]) == facts(record)
    steps = fleet(trace, replicas=3, router=router, max_stride=1)[0]
    assert facts(steps) == facts(record)


@pytest.mark.parametrize("router", ROUTERS.names())
def test_strides_of_sglang_change_nothing_behind_a_router(router: str) -> None:
    trace = traffic(4)
    how = {"replicas": 3, "router": router, "policy": "radix", "engine": "sglang", "gpu_memory_utilization": 0.42}
    record, counters = fleet(trace, **how)
    steps, counted = fleet(trace, **how, max_stride=1)
    assert facts(steps) == facts(record) and counted == counters
    assert len(record.step_columns()["steps"]) < record.engine_steps == len(steps.step_columns()["steps"])


def test_round_robin_takes_turns_and_sessions_stay() -> None:
    trace = traffic(1)
    columns = fleet(trace, replicas=3, router="round-robin")[0].request_columns()
    order = np.lexsort((np.arange(len(trace)), columns["arrival_ns"]))
    assert columns["replica"][order].tolist() == [i % 3 for i in range(len(trace))]
    stays = fleet(trace, replicas=3, router="session")[0].request_columns()["replica"]
    for session in set(trace.session.tolist()):
        assert len(set(stays[trace.session == session])) == 1
    homes = [max(range(4), key=lambda i: mixed(mixed(s) ^ i)) for s in range(2000)]
    after = [max(range(3), key=lambda i: mixed(mixed(s) ^ i)) for s in range(2000)]
    assert all(a == b for a, b in zip(homes, after, strict=True) if a != 3)  # only those of the lost one move
    assert min(np.bincount(homes)) > 400


def test_affinity_finds_more_prefixes_than_turns() -> None:
    trace = traffic(5, 300)
    hits = {router: fleet(trace, replicas=4, router=router)[0].request_columns()["cached_tokens"].sum()
            for router in ("round-robin", "prefix-affinity", "kv-aware")}
    assert hits["prefix-affinity"] > hits["round-robin"] and hits["kv-aware"] > hits["round-robin"]


def test_a_single_queue_waits_least() -> None:
    trace = traffic(3, 300, gap=8e6)
    waits = {}
    for router in ("round-robin", "single-queue"):
        columns = fleet(trace, replicas=4, router=router, policy="paged")[0].request_columns()
        waits[router] = (columns["scheduled_ns"] - columns["arrival_ns"]).mean()
    assert waits["single-queue"] < waits["round-robin"]


@pytest.mark.parametrize("router", ["round-robin", "prefix-affinity", "single-queue"])
def test_failures_are_retried_or_lost_and_counted(router: str) -> None:
    trace = traffic(2, 200, gap=1e7)
    outage = {"replicas": 3, "router": router, "failures": "1@500ms-1500ms,2@1s"}
    record, counters = fleet(trace, **outage)
    columns = check(trace, record)
    assert (columns["status"] == COMPLETED).all() and counters["retried"] > 0 and counters["lost"] == 0
    steps = record.step_columns()
    away = (steps["replica"] == 1) & (steps["end_ns"] > 5e8) & (steps["start_ns"] < 15e8)
    assert not away.any() and not ((steps["replica"] == 2) & (steps["end_ns"] > 1e9)).any()
    assert ((steps["replica"] == 1) & (steps["start_ns"] >= 15e8)).any()
    record, counters = fleet(trace, **outage, on_failure="lose")
    columns = check(trace, record)
    failed = columns["status"] == FAILED
    assert counters["lost"] == failed.sum() > 0 and counters["retried"] == 0
    orphans = columns["status"] == REFUSED
    assert ((columns["status"] == COMPLETED) | failed | orphans).all()
    assert all(failed[trace.parent[row]] or orphans[trace.parent[row]] for row in np.flatnonzero(orphans))


@pytest.mark.parametrize("what", [{"policy": "paged"}, {"engine": "sglang", "policy": None}])
def test_steps_before_a_failure_are_recorded_whatever_the_stride(what: dict[str, str]) -> None:
    trace = make_trace("made", "test", np.arange(6) * 10**6, np.full(6, 100), np.full(6, 300))
    outage = {**what, "replicas": 2, "failures": "1@633ms-1500ms", "router": "round-robin"}
    runs = [fleet(trace, **outage, max_stride=stride)[0] for stride in (None, 1)]
    steps = [record.step_columns() for record in runs]
    ends = [columns["end_ns"][(columns["replica"] == 1) & (columns["end_ns"] <= 633e6)].max() for columns in steps]
    assert ends[0] == ends[1] > 6e8 and (steps[0]["steps"] > 10).any()
    for name in ("engine_steps", "decode_tokens", "prefill_tokens"):
        assert getattr(runs[0], name) == getattr(runs[1], name)
    pooled = [np.repeat(*record.itl()) for record in runs]
    assert np.array_equal(np.sort(pooled[0]), np.sort(pooled[1]))


def test_when_nobody_is_there_requests_wait_or_fail() -> None:
    trace = traffic(2, 60)
    columns = fleet(trace, failures="0@800ms-5s")[0].request_columns()
    assert (columns["status"] == COMPLETED).all()
    record, counters = fleet(trace, failures="0@800ms")
    assert counters["lost"] > 0 and (record.request_columns()["last_token_ns"] <= 8e8).all()
    assert set(record.request_columns()["status"]) == {COMPLETED, FAILED, REFUSED}


@pytest.mark.parametrize("seed", range(3))
def test_prefill_and_decode_apart(seed: int) -> None:
    trace = traffic(seed)
    record, counters = fleet(trace, replicas=3, prefill_replicas=1, router="least-loaded")
    columns = check(trace, record)
    assert (columns["status"] == COMPLETED).all()
    gaps, counts = record.itl()
    assert counts.sum() == np.maximum(trace.output_tokens - 1, 0).sum()
    spoken = columns["last_token_ns"] - columns["first_token_ns"]
    assert (gaps * counts).sum() == spoken[trace.output_tokens > 0].sum()
    steps = record.step_columns()
    assert not steps["decode"][steps["replica"] == 0].any()
    assert not steps["prefill_tokens"][steps["replica"] > 0].any()
    moved = trace.prompt_tokens[trace.output_tokens > 1].sum()
    token = prepare(BASE).memory.kv_bytes_per_token
    assert 0 < counters["swapped_bytes"] <= (moved + 16 * len(trace)) * token
    tight, counters = fleet(trace, replicas=3, prefill_replicas=1, router="least-loaded", gpu_memory_utilization=0.12)
    assert counters["evicted_blocks"] > 0, "what a decode replica forgets does not go back over the link"
    recomputed = int(tight.request_columns()["recomputed_tokens"].sum())
    assert 0 < counters["swapped_bytes"] <= (moved + recomputed + 16 * len(trace)) * token
    slow, _ = fleet(trace, replicas=3, prefill_replicas=1, router="least-loaded", transfer="100MB,latency=10ms")
    second = {name: (c["last_token_ns"] - c["first_token_ns"]).sum() for name, c in
              (("fast", columns), ("slow", slow.request_columns()))}
    assert second["slow"] > second["fast"]


def test_autoscaling_follows_the_load_within_its_bounds() -> None:
    rng = np.random.default_rng(0)
    busy = rng.exponential(1e7, 500).cumsum() + 2e10
    arrival = np.concatenate([[0, 1e9], busy, busy[-1] + np.arange(1, 60) * 2e9]).astype(np.int64)
    trace = make_trace("wave", "test", arrival, np.full(len(arrival), 300), np.full(len(arrival), 40))
    record, counters = fleet(trace, router="least-loaded", autoscale="1-4,target=6,startup=1s,every=500ms,hold=5s")
    columns = check(trace, record)
    assert (columns["status"] == COMPLETED).all() and set(columns["replica"]) == {0, 1, 2, 3}
    steps = record.step_columns()
    assert steps["start_ns"][steps["replica"] > 0].min() >= busy[0] + 1e9  # nobody serves before the start-up is over
    assert set(columns["replica"][-20:]) == {0}  # … and they have gone again
    span = int(columns["last_token_ns"].max())
    assert span < counters["replica_ns"] < 2 * span
    fixed, _ = fleet(trace, router="least-loaded", replicas=4)
    assert (fixed.request_columns()["last_token_ns"] - arrival).mean() < (columns["last_token_ns"] - arrival).mean()


@pytest.mark.parametrize(("fields", "says"), [
    ({"failures": "1"}, "REPLICA@FROM"), ({"failures": "7@1s"}, "numbered 0 to 1"), ({"failures": "0@2s-1s"}, "return"),
    ({"autoscale": "4"}, "LEAST-MOST"), ({"autoscale": "1-2,speed=3"}, "target=N"),
    ({"router": "rund-robin"}, "did you"),
    ({"prefill_replicas": 2}, "at least one must decode"), ({"prefill_replicas": 1, "transfer": "0GB"}, "above zero"),
    ({"prefill_replicas": 1, "policy": "contiguous"}, "paged policy"), ({"mix": "l4"}, "DEVICE:REPLICAS"),
    ({"prefill_replicas": 1, "policy": "paged-offload"}, "host tier"),
    ({"prefill_replicas": 1, "model": "gemma-2-9b", "device": "h100-sxm", "max_model_len": 8192}, "sliding-window"),
    ({"mix": "l4:1,a10:1", "autoscale": "1-2"}, "equal"),
    ({"transfer": "pcie"}, "pcie"), ({"mix": "l4:1,a11:1"}, "did you mean a10"),
])
def test_what_does_not_go_together_is_explained_before_anything_runs(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        refuse(BASE.replace(replicas=2, **fields), loaded=True)


def test_mixed_devices_share_by_their_room(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["simulate", "--trace", "synth:chat?requests=120&rate=20", "--model", "llama-3.2-1b", "--device", "l4",
             "--mix", "l4:1,h100-sxm:1", "--router", "least-loaded", "--no-interval", "--json"]
    assert main(flags) == 0
    assert json.loads(capsys.readouterr().out)["requests"]["completed"] == 120


def test_parsers() -> None:
    assert Autoscale.parse("2-5").wanted(1000) == 5 and Autoscale.parse("2-5").wanted(0) == 2
    assert Autoscale.parse("1-9,target=10").wanted(31) == 4
    outages = Failures.parse("0@1s-2s,1@3m", True, 2).outages
    assert [(o.replica, o.start_ns, o.end_ns) for o in outages] == [(0, 10**9, 2 * 10**9), (1, 180 * 10**9, None)]
