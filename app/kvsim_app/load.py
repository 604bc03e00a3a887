"""One replica under load: the rate it holds, and how it behaves at rates around that. Both come from `kvsim.plan`,
so that the app and `kvsim plan` give one answer; here they are asked for and read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvsim.plan import Candidate
from kvsim.plan.alone import ALONE
from kvsim.plan.answer import TOO_SHORT
from kvsim.scenario import Scenario

METRICS = {"ttft_p99": "TTFT p99", "tpot_p99": "TPOT p99", "refused": "refused requests"}
"""how sentences name what a rate misses"""


@dataclass(frozen=True)
class Held:
    """What one replica of a policy holds."""

    candidate: Candidate
    tokens: float
    """mean output tokens of a request"""
    notes: tuple[str, ...]

    @property
    def policy(self) -> str:
        return self.candidate.policy

    @property
    def rate(self) -> float | None:
        """requests/s at which every objective is still met; None: there is no such rate, or none was found"""
        return self.candidate.rate_per_replica

    @property
    def too_short(self) -> bool:
        """Whether the traffic has too few requests to find a rate that is not held."""
        return self.candidate.limit == TOO_SHORT

    @property
    def why(self) -> str:
        """What binds first, as a sentence."""
        said = self.candidate.reason
        for name, title in METRICS.items():
            said = said.replace(name, title)
        return said


@dataclass(frozen=True)
class Point:
    """One policy at one rate. Latencies in seconds, rates in requests, throughputs in output tokens a second."""

    policy: str
    rate: float
    """requests/s that arrived"""
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    goodput: float | None
    """requests/s within the objectives"""
    output_rate: float | None
    per_gpu: float | None
    """output tokens/s of one GPU"""
    per_user: float | None
    """output tokens/s that one user sees: 1 ÷ median TPOT"""
    steady: bool
    """whether the replica keeps up: its queue does not grow for ever"""
    tier: str
    """of the cost model"""


def scenarios(base: Scenario, policies: Sequence[str]) -> dict[str, Scenario]:
    """What is asked of the planner, by policy: one replica and as much of the traffic as percentiles need, however
    short a part of it the other pages look at."""
    alone = base.replace(duration=None, interval=False, **ALONE)
    return {policy: alone.replace(policy=policy) for policy in policies}


def slo(limits: Mapping[str, float]) -> str:
    """Limits in seconds as `kvsim plan --slo` takes them."""
    return ",".join(f"{name}={seconds * 1e3:g}ms" for name, seconds in limits.items())


def held(file: Path) -> Held:
    """Read what the task `plan` wrote."""
    said = json.loads(file.read_text(encoding="utf-8"))
    return Held(Candidate(**said["candidate"] | {"curve": ()}), said["tokens"], tuple(said["notes"]))


def points(file: Path, policy: str, gpus: int) -> list[Point]:
    """Read what the task `curve` wrote; `gpus`: of one replica."""
    found = []
    for said in json.loads(file.read_text(encoding="utf-8")):
        good, output = said.pop("goodput"), said["output_rate"]
        kept = {name: said[name] for name in said if name in Point.__dataclass_fields__}
        found.append(
            Point(
                policy,
                **kept,
                goodput=None if good is None else good * said["rate"],
                per_gpu=None if output is None else output / gpus,
            )
        )
    return found


def sized(one: Held, target: float, price: float | None) -> Candidate:
    """With replicas, cost and energy for `target` requests/s at a price of a GPU and hour."""
    return replace(one.candidate, price_per_gpu_hour=price).sized(target, one.tokens)
