"""Load curves: the same scenario at several rates. The seam for `kvsim plan`: pages know only what is here.

A rate is *held* where every objective is met. Between the last rate that is held and the first that is not, the
objective's crossing is interpolated on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvsim.metrics import goodput
from kvsim.result import Result
from kvsim.scenario import Scenario

SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""of the scenario's own rate"""
WINDOW_S = 180.0
"""longest stretch of traffic that a point replays"""
METRICS = {"ttft_p99": "TTFT p99", "tpot_p99": "TPOT p99"}
_FULL = 0.9


@dataclass(frozen=True)
class Point:
    """One policy at one rate. Latencies in seconds, rates in requests, throughputs in output tokens a second."""

    policy: str
    scale: float
    rate: float
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    goodput: float | None
    output_rate: float | None
    per_gpu: float | None
    """output tokens/s of one GPU"""
    tokens: float
    """mean output tokens of a request"""
    full: bool
    """the KV pool was full (used, reserved, internal) at some time"""

    @property
    def per_user(self) -> float | None:
        return 1 / self.tpot_p50 if self.tpot_p50 else None


@dataclass(frozen=True)
class Capacity:
    """What one replica of a policy holds."""

    policy: str
    rate: float
    """requests/s at which every objective is still met; 0: not even the lowest that was tried"""
    beyond: bool
    """even the highest rate that was tried is held: the true one is higher"""
    limit: str
    """what is missed first, and why"""
    tokens_per_request: float


def scenarios(base: Scenario, policies: Sequence[str]) -> dict[str, Scenario]:
    """The scenarios of a load curve by `policy × scale`; no intervals, as a curve has many runs.

    A cut trace is cut longer before it is sped up, so that every point replays the same stretch of time: rates scale
    the starts of conversations, never people's think times, and a short burst would hide a queue that grows.
    """
    window = min(base.duration_ns / 1e9, WINDOW_S) if base.duration_ns else None
    found = {}
    for policy in policies:
        for scale in SCALES:
            cut = {"duration": f"{window * scale * base.rate_scale:g}s"} if window else {}
            found[f"{policy} × {scale:g}"] = base.replace(
                policy=policy, rate_scale=base.rate_scale * scale, interval=False, **cut
            )
    return found


def points(runs: Mapping[str, Result], limits: Mapping[str, float], rate: float, gpus: int) -> list[Point]:
    """The points of `scenarios`' runs; `rate`: requests/s of the scenario itself, `gpus`: of one replica."""
    return [_point(*name.split(" × "), result, limits, rate, gpus) for name, result in runs.items()]


def capacities(found: Sequence[Point], limits: Mapping[str, float]) -> list[Capacity]:
    """What each policy holds under `limits` ({"ttft_p99": s, "tpot_p99": s})."""
    policies = dict.fromkeys(point.policy for point in found)
    return [
        _capacity(policy, sorted((p for p in found if p.policy == policy), key=lambda p: p.scale), limits)
        for policy in policies
    ]


def _point(policy: str, scale: str, result: Result, limits: Mapping[str, float], rate: float, gpus: int) -> Point:
    summary = result.summary
    latency, output = summary["latency_s"], summary["throughput"]["output_tokens_per_s"]
    limited = {name.split("_")[0]: limit for name, limit in limits.items()}
    return Point(
        policy,
        float(scale),
        float(scale) * rate,
        latency["ttft"]["p50"],
        latency["ttft"]["p99"],
        latency["itl"]["p99"],
        latency["tpot"]["p50"],
        latency["tpot"]["p99"],
        goodput(result, limited)["requests_per_s"],
        output,
        output / gpus if output is not None else None,
        float(result.requests["output_tokens"].mean() or 0.0),
        _was_full(result),  # type: ignore[arg-type]
    )


def _was_full(result: Result) -> bool:
    frame = result.timeline
    held = frame["used"] + frame["reserved"] + frame["internal"]
    pool = held + frame["cached"] + frame["external"] + frame["free"]
    return bool(((held + frame["external"]) >= _FULL * pool).filter(pool > 0).any())


def _capacity(policy: str, line: list[Point], limits: Mapping[str, float]) -> Capacity:
    def missed(point: Point) -> list[str]:
        return [name for name, limit in limits.items() if (getattr(point, name) or 0.0) > limit]

    bad = next((i for i, point in enumerate(line) if missed(point)), None)
    tokens = line[0].tokens if line else 0.0
    if bad is None:
        return Capacity(policy, line[-1].rate if line else 0.0, True, "nothing yet", tokens)
    name = missed(line[bad])[0]
    why = "the KV pool is full" if line[bad].full else "compute and memory bandwidth"
    limit = f"{METRICS[name]}: {why}"
    if bad == 0:
        return Capacity(policy, 0.0, False, limit, tokens)
    crossings = [_crossing(line[bad - 1], line[bad], key, limits[key]) for key in missed(line[bad])]
    return Capacity(policy, min(crossings), False, limit, tokens)


def _crossing(low: Point, high: Point, metric: str, limit: float) -> float:
    """The rate at which `metric` reaches `limit`, between two rates."""
    below, above = getattr(low, metric) or limit / 1e3, getattr(high, metric)
    share = math.log(limit / below) / math.log(above / below) if above > below > 0 else 0.0
    return low.rate * (high.rate / low.rate) ** min(max(share, 0.0), 1.0)
