"""A Scenario with every name resolved: where models, devices, engines, caches and limits meet.

`prepare` refuses what does not go together; a Setup is all that one replica needs beside a trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.cache.build import Pool
from kvsim.cache.policies import POLICIES
from kvsim.cache.spec import CacheSpec
from kvsim.cluster import ROUTERS
from kvsim.cost import CostModel, HostOverhead
from kvsim.cost.kernels import geometry
from kvsim.cost.lockstep import Lockstep
from kvsim.cost.nccl import over_nccl
from kvsim.cost.pipeline import PipelineCost
from kvsim.device import DeviceProfile, load_device
from kvsim.engine.decode_set import NEVER
from kvsim.engine_profile import EngineProfile, load_engine
from kvsim.errors import InputError
from kvsim.memory import MemoryPlan, forward_bytes, plan_memory
from kvsim.model import ModelSpec, load_model
from kvsim.scenario import Scenario, flag
from kvsim.sched import SCHEDULERS
from kvsim.sched.base import Limits, Scheduler


@dataclass(frozen=True)
class Setup:
    """A Scenario with every name resolved: all that one replica needs beside a trace.

    Replicas that share experts step together, as one engine: `cost`, `limits` and `pool` are then of the whole group,
    `memory` is of one of its GPUs."""

    scenario: Scenario
    model: ModelSpec
    device: DeviceProfile
    engine: EngineProfile
    spec: CacheSpec
    memory: MemoryPlan
    limits: Limits
    scheduler: type[Scheduler]
    cost: CostModel

    @property
    def windows(self) -> tuple[int, ...]:
        """Tokens that each attention group of the model attends under the policy (0: all)."""
        cap = self.spec.retention.cap
        windows = [group.window for group in self.model.attention_groups]
        return tuple(windows) if cap >= NEVER // 4 else tuple(min(window or cap, cap) for window in windows)

    @property
    def group(self) -> int:
        """Replicas that step together."""
        return group_of(self.scenario)

    def pool(self) -> Pool:
        memory, scenario, group = self.memory, self.scenario, self.group
        return Pool(
            bytes=memory.pool * group, token_bytes=memory.group_token_bytes, windows=memory.windows,
            max_model_len=memory.max_model_len, batch_tokens=memory.max_num_batched_tokens * group,
            unusable=memory.unusable_blocks * group, forks=self.forks,
            activation_bytes=forward_bytes(self.model, self.engine, 1, scenario.tp),
        )

    @property
    def forks(self) -> bool:
        """Whether further answers to a prompt are forked off the first."""
        return self.engine.forks and self.scenario.samples > 1


def policy_of(scenario: Scenario, engine: EngineProfile) -> CacheSpec:
    """The preset (the engine's, in its block size, where none is named) with the axes that the scenario overrides."""
    block_size = scenario.block_size or (None if scenario.policy else engine.limits.block_size)
    return POLICIES.get(scenario.policy or engine.policy).override(
        layout=scenario.layout, block_size=block_size, prefix=scenario.prefix, eviction=scenario.eviction,
        retention=scenario.retention, precision=scenario.kv_dtype, tier=scenario.tier, on_pressure=scenario.on_pressure,
        attention=scenario.attention,
    )


def group_of(scenario: Scenario) -> int:
    """Replicas of a scenario that share their experts and so step together: ep ÷ tp of them. A lone replica stands for
    one of such a group whose others have as much to do; stages of a pipeline are not put in step."""
    together = scenario.ep > scenario.tp and scenario.replicas > 1 and scenario.pp == 1
    return scenario.ep // scenario.tp if together else 1


def _whole_groups(scenario: Scenario) -> None:
    """Raises InputError where replicas are counted that no group of equals consists of."""
    group = group_of(scenario)
    if group == 1:
        return
    for name in ("replicas", "prefill_replicas"):
        if (value := getattr(scenario, name) or 0) % group:
            raise InputError(f"{flag(name)} {value}: with --ep {scenario.ep} groups of {group} replicas share their "
                             f"experts; use a multiple of {group}")
    for name in ("mix", "failures", "autoscale"):
        if getattr(scenario, name) is not None:
            raise InputError(f"{flag(name)} does not go with --ep {scenario.ep}: its groups of {group} replicas step "
                             "together, and are equal, present and gone together")


def host_of(engine: EngineProfile, layers: int, tp: int, ep: int) -> HostOverhead:
    """The engine's constants; where replicas share experts (`ep` > `tp`), with what agreeing on every step takes."""
    host = HostOverhead.of(engine.host, tp, layers)
    return replace(host, exposed_ns=host.exposed_ns + engine.host.exposed_lockstep_ns) if ep > tp else host


def seen_by(engine: EngineProfile, device: DeviceProfile, tp: int = 1, ep: int = 1) -> DeviceProfile:
    """The device without the tables of kernels that the engine does not run: the data sheet's forms stand in.

    Tables are of vLLM's kernels. Replicas of one GPU that share experts gather and scatter their tokens by NCCL, not by
    vLLM's all-reduce; an engine may use NCCL for all that, or have experts of its own."""
    if engine.nccl:
        device = over_nccl(device)
    curves = device.curves
    if tp == 1 < ep:
        curves = curves.model_copy(update={"collective": ()})
    if engine.own_experts:
        moe = tuple(curve for curve in curves.moe if curve.dtype not in engine.own_experts)
        curves = curves.model_copy(update={"moe": moe})
    return device.model_copy(update={"curves": curves})


def _chunk(scenario: Scenario, engine: EngineProfile) -> int:
    told = scenario.long_prefill_token_threshold
    return engine.limits.long_prefill_token_threshold if told is None else told


def _known_to(engine: EngineProfile, scheduler: object, scenario: Scenario) -> None:
    """Raises InputError for an option of the scheduler that this engine lacks, or that SGLang's scheduler, which has
    limits of its own, would pass over in another engine."""
    told = {"scheduling_policy": scenario.scheduling_policy == "priority",
            "long_prefill_token_threshold": scenario.long_prefill_token_threshold}
    for name in (name for name, is_told in told.items() if is_told):
        if name not in engine.options:
            raise InputError(f"{flag(name)}: {engine.name} has no such option; --engine vllm-1 has")
        if scheduler is SCHEDULERS.get("sglang"):
            raise InputError(f"{flag(name)}: --scheduler sglang has no such option; leave one of them out")


def prepare(scenario: Scenario) -> Setup:
    """Resolve a scenario. Raises InputError that names the flag or name that is wrong."""
    if scenario.speculative:
        raise InputError("--speculative: speculative decoding is not modelled; leave it out (TPOT is then too high)")
    model, device = load_model(scenario.model), load_device(scenario.device)
    engine = load_engine(scenario.engine or "vllm-1")
    scheduler = SCHEDULERS.get(scenario.scheduler or engine.scheduler)
    _known_to(engine, scheduler, scenario)
    ROUTERS.get(scenario.router)
    spec = policy_of(scenario, engine)
    memory = plan_memory(
        model, device, engine, tp=scenario.tp, pp=scenario.pp, ep=scenario.ep, weights_dtype=scenario.weights_dtype,
        kv_dtype=spec.precision, gpu_memory_utilization=scenario.gpu_memory_utilization,
        max_model_len=scenario.max_model_len, max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.max_num_batched_tokens, block_size=spec.block_size, attention=spec.attention,
    ).require()
    if scenario.ep > 1 and scenario.ep % scenario.tp:
        raise InputError(f"--ep {scenario.ep}: experts are shared by whole replicas of --tp {scenario.tp} GPUs; "
                         f"use a multiple of {scenario.tp}")
    _whole_groups(scenario)
    kernels = geometry(
        model, tp=scenario.tp, ep=scenario.ep, dp=max(1, scenario.ep // scenario.tp),
        weights_dtype=scenario.weights_dtype, kv_dtype="bf16" if spec.precision == "auto" else spec.precision,
        attention=spec.attention, block_size=spec.block_size if spec.layout == "paged" else 0,
        repeated_reads=engine.repeated_reads,
    )
    host = host_of(engine, model.layers, scenario.tp, scenario.ep)
    seen = seen_by(engine, device, scenario.tp, scenario.ep)
    cost = CostModel(kernels, seen, host) if scenario.pp == 1 else PipelineCost(
        kernels, seen, host, stages=scenario.pp, hidden=model.hidden, budget=memory.max_num_batched_tokens)
    group = group_of(scenario)
    if group > 1:
        cost = Lockstep.over(group, cost)
    limits = Limits(
        sequences=memory.max_num_seqs * group, tokens=memory.max_num_batched_tokens * scenario.pp * group,
        chunk=_chunk(scenario, engine), whole_prompt=engine.whole_prompt_admission,
        reserve_output=engine.reserve_output, priority=scenario.scheduling_policy == "priority",
    )
    if (spec.prefix == "radix") != (scheduler is SCHEDULERS.get("sglang")):
        raise InputError(
            f"prefix {spec.prefix} and scheduler {scenario.scheduler or engine.scheduler} do not go together: SGLang's "
            "scheduler runs on its radix tree and on nothing else (--engine sglang, or another policy)"
        )
    return Setup(scenario, model, device, engine, spec, memory, limits, scheduler, cost)
