"""A prepared scenario as a cluster: one Kind for each device, decode replicas behind a link where they are apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvsim.cache.base import Allocator
from kvsim.cache.build import build_cache
from kvsim.cache.paged import Paged
from kvsim.cache.radix_pool import RadixPool
from kvsim.cache.tier import Tier
from kvsim.cache.tiered import Tiered
from kvsim.cluster import Autoscale, Cluster, Failures, Kind, Options
from kvsim.cluster.member import Engine, Member
from kvsim.cost import CostModel
from kvsim.engine.decode_set import NEVER
from kvsim.engine.replica import Replica
from kvsim.engine.sglang_replica import SglangReplica
from kvsim.errors import InputError
from kvsim.record import Recorder
from kvsim.scenario import Scenario
from kvsim.sched.sglang import Limits as SglangLimits
from kvsim.setup import Setup, group_of
from kvsim.trace.types import Trace
from kvsim.units import parse_bytes, parse_duration_ns

REMOTE = 1 << 62
"""bytes at the other end of the link: as many as there are"""


def is_cluster(scenario: Scenario) -> bool:
    """Whether a scenario asks for more than one replica alone."""
    return scenario.replicas > 1 or any(
        (scenario.mix, scenario.prefill_replicas, scenario.failures, scenario.autoscale)
    )


def mixture(scenario: Scenario) -> list[tuple[str, int]]:
    """(device, engines) of each kind: `mix` as `h100-sxm:2,l40s:4`, or the scenario's device and replicas. Replicas
    that step together are one engine."""
    if scenario.mix is None:
        return [(scenario.device, scenario.replicas // group_of(scenario))]
    found = []
    for part in scenario.mix.split(","):
        name, _, count = part.strip().rpartition(":")
        if not name or not count.isdecimal() or int(count) < 1:
            raise InputError(f"--mix {part!r} is not understood: write DEVICE:REPLICAS, such as h100-sxm:2,l40s:4")
        found.append((name, int(count)))
    return found


@dataclass(frozen=True)
class Wanted:
    """What a scenario says of its cluster, read."""

    total: int
    """engines, those included that only decode or that are started later"""
    autoscale: Autoscale | None
    failures: Failures
    link: Tier | None
    """between replicas that only prefill and those that only decode, where they are apart"""


def wanted(setup: Setup) -> Wanted:
    """Read all that a scenario says of its cluster. Raises InputError that names the flag."""
    scenario, facts = setup.scenario, setup.device.facts
    kinds = mixture(scenario)
    total = sum(count for _, count in kinds)
    link = _link(scenario.transfer, int(facts.link_bandwidth), round(facts.link_latency_ns))
    apart = scenario.prefill_replicas is not None
    if apart:
        _splittable(setup, len(kinds), total)
    scale = Autoscale.parse(scenario.autoscale) if scenario.autoscale else None
    if scale is not None:
        if len(kinds) > 1 or apart:
            raise InputError("--autoscale works on equal replicas: it goes with neither --mix nor --prefill-replicas")
        total = scale.most
    failures = Failures.parse(scenario.failures, scenario.on_failure == "retry", total)
    return Wanted(total, scale, failures, link if apart else None)


def run_fleet(
    trace: Trace, parts: list[tuple[Setup, CostModel, int]], how: dict[str, Any]
) -> tuple[Recorder, dict[str, int]]:
    """Run a cluster of (setup, its cost, replicas): what was recorded, and counters. `how`: as `drive`'s."""
    setup = parts[0][0]
    scenario, asked, cost = setup.scenario, wanted(setup), parts[0][1]
    kinds = [kind_of(one, its_cost, count, trace) for one, its_cost, count in parts]
    decode: tuple[Kind, ...] = ()
    if asked.link is not None:
        first = (scenario.prefill_replicas or 0) // setup.group
        kinds = [kind_of(setup, cost, first, trace)]
        decode = (kind_of(setup, cost, asked.total - first, trace, asked.link),)
    if asked.autoscale is not None:
        kinds = [kind_of(setup, cost, asked.total, trace)]
    options = Options(
        router=scenario.router, decode=decode, autoscale=asked.autoscale, max_model_len=how["max_model_len"],
        failures=asked.failures, chains=how["chains"], progress=how["progress"], stop=how["stop"],
    )
    record, counters = Cluster(trace, kinds, options).run()
    counters["replica_ns"] *= setup.group
    return record, {"prefill": record.prefill_tokens, "decode": record.decode_tokens, **counters}


def _splittable(setup: Setup, kinds: int, total: int) -> None:
    """Raises InputError where replicas can't be split into such that prefill and such that decode."""
    scenario, group = setup.scenario, setup.group
    if kinds > 1:
        raise InputError("--prefill-replicas splits equal replicas: it does not go with --mix")
    if (scenario.prefill_replicas or 0) >= total * group:
        raise InputError(
            f"--prefill-replicas {scenario.prefill_replicas} of --replicas {total * group}: at least one must decode"
        )
    if setup.spec.tier.bytes or setup.spec.prefix == "radix":
        raise InputError("--prefill-replicas does not go with a host tier or the radix tree: choose another --policy")
    if setup.spec.layout != "paged":
        raise InputError("--prefill-replicas needs a paged policy: caches move in blocks")
    if any(setup.memory.windows):
        raise InputError(f"--prefill-replicas: caches of sliding-window layers, as {scenario.model} has, are not moved")


def _link(text: str | None, bandwidth: int, latency_ns: int) -> Tier:
    """The link over which a decode replica fetches caches: `50GB` or `50GB,latency=20us`; by default the device's."""
    if text:
        size, _, rest = text.partition(",")
        key, _, value = rest.partition("=")
        if rest and key.strip() != "latency":
            raise InputError(f"--transfer {text!r} is not understood: write bytes a second, such as 50GB,latency=20us")
        bandwidth, latency_ns = parse_bytes(size), parse_duration_ns(value) if rest else latency_ns
        if bandwidth < 1:
            raise InputError(f"--transfer {text!r}: the bandwidth must be above zero")
    return Tier(REMOTE, bandwidth, latency_ns)


def kind_of(setup: Setup, cost: CostModel, count: int, trace: Trace, link: Tier | None = None) -> Kind:
    """`count` engines of a setup; with `link`, such as get their prompts' caches over it."""
    memory = setup.memory
    token_bytes = memory.group_token_bytes * len(memory.windows)
    build = _radix(setup, cost, token_bytes) if setup.spec.prefix == "radix" else _plain(setup, cost, trace, link)
    return Kind(count, build, capacity=max(1, memory.tokens * setup.group), bite=setup.limits.tokens)


def _plain(setup: Setup, cost: CostModel, trace: Trace, link: Tier | None) -> Callable[..., Engine]:
    def build(env: Any, source: Member, recorder: Recorder, index: int) -> Engine:
        kv: Allocator = build_cache(setup.spec, setup.pool(), trace)
        if link is not None:
            assert isinstance(kv, Paged)  # `_splittable` has refused all others
            kv = Tiered(kv, link, swap=False, keep=False)
        return Replica(
            env, scheduler=setup.scheduler(), limits=setup.limits, kv=kv, cost=cost, windows=setup.windows,
            source=source, recorder=recorder, tier=link or setup.spec.tier,
            asynchronous=setup.engine.host.asynchronous, max_stride=setup.scenario.max_stride or NEVER, index=index,
        )

    return build


def _radix(setup: Setup, cost: CostModel, token_bytes: int) -> Callable[..., Engine]:
    def build(env: Any, source: Member, recorder: Recorder, index: int) -> Engine:
        page = setup.spec.block_size
        pool = RadixPool(setup.pool().bytes // token_bytes, page, setup.spec.eviction, unit=page)
        return SglangReplica(
            env, pool=pool, limits=SglangLimits(setup.limits.sequences, setup.limits.tokens, max_prefill_tokens=16384),
            token_bytes=token_bytes, cost=cost, windows=setup.windows, source=source, recorder=recorder,
            max_stride=setup.scenario.max_stride or NEVER, index=index,
        )

    return build
