"""Tensor, pipeline and expert parallelism: what a split must and must not do to a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsim.cost import StepShape
from kvsim.cost.lockstep import Lockstep
from kvsim.cost.pipeline import PipelineCost
from kvsim.engine_profile import load_engine
from kvsim.errors import InputError
from kvsim.record import Recorder
from kvsim.scenario import Scenario
from kvsim.setup import Setup, prepare
from kvsim.simulate import simulate
from kvsim.trace.types import Trace, make_trace

BASE = Scenario(
    trace="made", model="llama-3.1-8b", device="h100-sxm", policy="paged", max_model_len=4096, interval=False
)


def shape(n: int, mean: int = 500, chunks: tuple[tuple[int, int], ...] = ()) -> StepShape:
    return StepShape(decode=n, attended=(n * mean,), longest=(mean,), growing=(n,), longest_grows=(bool(n),),
                     chunks=chunks, sampled=n + len(chunks))


def traffic() -> Trace:
    rng = np.random.default_rng(0)
    arrival = rng.exponential(3e7, 80).cumsum().astype(np.int64)
    return make_trace("made", "test", arrival, rng.integers(16, 3000, 80), rng.integers(1, 60, 80))


def setup(**fields: object) -> Setup:
    return prepare(BASE.replace(**fields))


def test_a_pipelined_step_is_its_largest_micro_batch() -> None:
    one, two = setup().cost, setup(pp=2).cost
    assert isinstance(two, PipelineCost)
    sends = round(two.send_ns(16))
    assert two.step(shape(32)) == one.step(shape(16)) + sends
    assert two.micro(shape(31)).decode == 16
    assert two.micro(shape(8, chunks=((900, 0), (500, 64), (300, 0)))).chunks == ((900, 0),)
    assert two.micro(shape(8, chunks=((900, 0), (500, 64), (450, 0)))).chunks == ((500, 64), (450, 0))


def test_a_lone_prompt_gains_nothing_and_a_full_batch_does() -> None:
    one, four = setup().cost, setup(pp=4).cost
    alone = StepShape(attended=(0,), longest=(0,), growing=(0,), longest_grows=(False,), chunks=((1000, 0),), sampled=1)
    assert four.step(alone) > one.step(alone)  # the bubble: all stages one after the other, and the sends
    assert one.step(shape(256)) / 4 < four.step(shape(256)) < one.step(shape(256))


def test_long_prompts_fill_the_stages() -> None:
    two = setup(pp=2, max_num_batched_tokens=1024).cost
    assert two.micro(shape(0, chunks=((2048, 0),))).chunks in (((1024, 0),), ((1024, 1024),))
    assert setup(pp=2, max_num_batched_tokens=1024).limits.tokens == 2048


def test_strides_of_a_pipeline_are_its_steps() -> None:
    cost = setup(pp=3).cost
    run = cost.decode_run(shape(17), 20)
    steps = [cost.step(shape(17, 500 + j)) for j in range(20)]
    assert run.tolist() == steps == cost.short_run(shape(17), 20)
    trace = traffic()
    runs = [simulate(trace, setup(pp=3, max_stride=stride), setup(pp=3).cost)[0] for stride in (None, 1)]
    assert runs[0].last_token_ns == runs[1].last_token_ns


def test_parts_add_up_and_scale() -> None:
    cost = setup(pp=2).cost
    for one in (shape(40), shape(40, chunks=((512, 0),))):
        parts = cost.parts(one)
        assert "send" in parts and sum(p.ns for p in parts.values()) == pytest.approx(cost.step(one), abs=2)
        band = cost.error_band(one)
        assert cost.scaled(band.high).step(one) > cost.step(one) > cost.scaled(band.low).step(one)


def test_a_split_model_leaves_more_room() -> None:
    pools = [setup(tp=tp, pp=pp).memory.tokens for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2))]
    assert pools[0] < min(pools[1:3]) and max(pools[1:3]) < pools[3]


def test_tensor_parallel_pays_for_its_reductions() -> None:
    one, two, eight = (setup(tp=tp).cost.step(shape(64)) for tp in (1, 2, 8))
    assert one / 2 < two < one and one / 8 < eight
    assert "allreduce" in setup(tp=2).cost.parts(shape(64)) and "allreduce" not in setup().cost.parts(shape(64))


def test_tokens_of_shared_experts_are_gathered_by_nccl() -> None:
    """Which is in no table: tables of all-reduce are of vLLM's kernel. Within a tensor-parallel group it is reduced."""
    gathered, reduced = (setup(model="qwen3-30b-a3b", tp=tp, ep=ep).cost.parts(shape(64))["allreduce"]
                         for tp, ep in ((1, 2), (2, 2)))
    assert (gathered.tier, reduced.tier) == ("datasheet", "imported")


def test_an_engine_with_experts_of_its_own_is_not_priced_by_vllms() -> None:
    """Only in the formats that its profile names; everything else is the device's."""
    mixtral: dict[str, object] = {"model": "mixtral-8x7b", "device": "h100-sxm", "tp": 2}
    tiers = {(engine, dtype): {name: part.tier for name, part in
                               setup(**mixtral, engine=engine, weights_dtype=dtype).cost.parts(shape(64)).items()}
             for engine in ("vllm-1", "trtllm") for dtype in ("fp8", "bf16")}
    assert tiers["trtllm", "fp8"]["experts"] == "datasheet"
    assert {tiers[key]["experts"] for key in tiers if key != ("trtllm", "fp8")} == {"imported"}
    assert {tier["allreduce"] for tier in tiers.values()} == {tier["linear"] for tier in tiers.values()} == {"imported"}


def test_an_engine_that_reduces_by_nccl_pays_for_its_start() -> None:
    """LMDeploy does, and TensorRT-LLM 0.14; on one GPU there is nothing to reduce."""
    small = {engine: setup(tp=4, engine=engine).cost.parts(shape(8))["allreduce"].ns
             for engine in ("vllm-1", "lmdeploy", "trtllm@0.14", "trtllm")}
    assert small["vllm-1"] == small["trtllm"] < small["lmdeploy"] / 3
    assert small["trtllm@0.14"] > 64 * 25e3
    assert small["lmdeploy"] == pytest.approx(load_engine("lmdeploy").host.decode_factor * small["trtllm@0.14"])
    assert "allreduce" not in setup(engine="lmdeploy").cost.parts(shape(8))


def test_replicas_that_share_experts_agree_on_every_step() -> None:
    """Which takes the engine's constant; experts that are split inside one replica have nobody to agree with."""
    alone, inside, together = (setup(model="qwen3-30b-a3b", tp=tp, ep=ep).cost.host.exposed_ns
                               for tp, ep in ((1, 1), (2, 2), (1, 2)))
    assert together - alone == load_engine("vllm-1").host.exposed_lockstep_ns > 0
    assert inside == alone


MOE: dict[str, object] = {"model": "qwen3-30b-a3b", "device": "b200"}


def test_replicas_that_share_experts_are_one_engine_in_lockstep() -> None:
    """Twice the slots, the tokens and the pool; a step takes what its slowest replica takes."""
    one, both = setup(**MOE, ep=2), setup(**MOE, ep=2, replicas=2)
    assert isinstance(both.cost, Lockstep) and not isinstance(one.cost, Lockstep)
    assert (both.limits.sequences, both.limits.tokens) == (2 * one.limits.sequences, 2 * one.limits.tokens)
    assert both.pool().bytes == 2 * one.pool().bytes and both.memory == one.memory
    assert both.cost.step(shape(64)) == one.cost.step(shape(32))
    prompt = both.cost.step(shape(64, chunks=((900, 0),)))  # on one of them, and the other waits for it
    assert prompt == both.cost.step(shape(64, chunks=((900, 0), (900, 0)))) > both.cost.step(shape(64))
    assert not isinstance(setup(**MOE, tp=2, ep=2, replicas=2).cost, Lockstep)  # experts split inside a replica


def test_a_group_waits_for_its_slowest_replica() -> None:
    """A lone replica under half the traffic, whose others have as much to do, does not see their prompts."""
    trace = make_trace("made", "test", np.arange(60) * 100_000_000, np.full(60, 3800), np.full(60, 200))
    group = setup(**MOE, ep=2, replicas=2)
    found, counters = simulate(trace, group, group.cost)
    alone = setup(**MOE, ep=2)
    twin, _ = simulate(replace(trace, arrival_ns=2 * trace.arrival_ns), alone, alone.cost)  # half the rate for one
    assert found.decode_tokens == twin.decode_tokens == 60 * 199

    def last_gaps(record: Recorder) -> float:
        columns = record.request_columns()
        return float((columns["last_token_ns"] - columns["first_token_ns"]).mean())

    assert last_gaps(found) > 1.05 * last_gaps(twin)
    assert counters["replica_ns"] == 2 * (max(found.last_token_ns) - 0)


def test_groups_are_whole_and_stay_together() -> None:
    trace = traffic()
    four = setup(**MOE, ep=2, replicas=4, prefill_replicas=2)
    record, _ = simulate(trace, four, four.cost)
    ended_on = record.request_columns()["replica"]
    assert (ended_on == (trace.output_tokens > 1)).all()  # the first group has the prompts, the second decodes
    for fields, words in (
        ({"replicas": 3}, "use a multiple of 2"), ({"replicas": 4, "prefill_replicas": 1}, "--prefill-replicas 1"),
        ({"replicas": 4, "failures": "1@60s"}, "--failures does not go with --ep 2"),
        ({"replicas": 4, "autoscale": "1-4"}, "--autoscale"), ({"replicas": 4, "mix": "b200:4"}, "--mix"),
    ):
        with pytest.raises(InputError, match=words):
            setup(**MOE, ep=2, **fields)
    assert setup(**MOE, ep=2, replicas=3, pp=2).group == 1  # a pipeline's replicas are not put in step


def test_expert_parallel_holds_fewer_experts() -> None:
    moe = {"model": "qwen3-30b-a3b"}
    one, four = setup(**moe), setup(**moe, ep=4)
    assert four.memory.weights < 0.5 * one.memory.weights
    key, whole = four.cost.geometry.experts[0].key, one.cost.geometry.experts[0].key
    assert (key.experts, key.top_k) == (whole.experts // 4, whole.top_k)  # 4 × the tokens, a quarter of the experts
    both = setup(**moe, tp=4, ep=4).cost.geometry.experts[0].key
    assert (both.experts, both.top_k) == (whole.experts // 4, whole.top_k // 4)
    with pytest.raises(InputError):
        setup(ep=4)  # a dense model has none
    for tp, ep in ((2, 3), (4, 2)):  # no whole number of replicas
        with pytest.raises(InputError, match=f"use a multiple of {tp}"):
            setup(**moe, tp=tp, ep=ep)
