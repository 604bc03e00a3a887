"""Load curves: the same scenario at several rates.

A rate is *held* where every objective is met. Between the last rate that is held and the first that is not, the
objective's crossing is interpolated on logarithms. `kvsim plan` searches for that rate instead, and gives up a run as
soon as it must miss; pages draw whole curves, which need every run to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvsim.metrics import distribution, goodput, latencies
from kvsim.scenario import Scenario
from kvsim_app.steady import Steady

SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""of the scenario's own rate"""
WINDOW_S = 180.0
"""longest stretch of traffic that a point replays"""
METRICS = {"ttft_p99": "TTFT p99", "tpot_p99": "TPOT p99"}

Why = Callable[["Point", tuple[str, ...]], tuple[str, str]]
"""(a point, the objectives it misses) → what binds there, and why"""


@dataclass(frozen=True)
class Point:
    """One policy at one rate. Latencies in seconds, rates in requests, throughputs in output tokens a second, all of
    the time in which traffic is at its full rate; gaps between tokens (ITL) are those of the whole run."""

    policy: str
    scale: float
    """of the scenario's own rate"""
    rate: float
    """requests/s that arrived"""
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
    """what binds first …"""
    why: str
    """… and the sentence that says why"""
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


def points(runs: Mapping[str, Steady], limits: Mapping[str, float], gpus: int) -> list[Point]:
    """The points of `scenarios`' runs; `gpus`: of one replica."""
    return [_point(*name.split(" × "), run, limits, gpus) for name, run in runs.items()]


def capacities(found: Sequence[Point], limits: Mapping[str, float], why: Why) -> list[Capacity]:
    """What each policy holds under `limits` ({"ttft_p99": s, "tpot_p99": s})."""
    policies = dict.fromkeys(point.policy for point in found)
    return [
        _capacity(policy, sorted((p for p in found if p.policy == policy), key=lambda p: p.scale), limits, why)
        for policy in policies
    ]


def _point(policy: str, scale: str, run: Steady, limits: Mapping[str, float], gpus: int) -> Point:
    result = run.result
    found = latencies(result.requests)
    ttft, tpot = distribution(found["ttft"]), distribution(found["tpot"])
    good = goodput(result, {name.split("_")[0]: limit for name, limit in limits.items()})["share"]
    return Point(
        policy,
        float(scale),
        run.rate,
        ttft["p50"],
        ttft["p99"],
        run.itl_p99,
        tpot["p50"],
        tpot["p99"],
        None if good is None else good * run.rate,
        run.output_rate,
        run.output_rate / gpus,
        float(result.requests["output_tokens"].mean() or 0.0),  # type: ignore[arg-type]
    )


def _capacity(policy: str, line: list[Point], limits: Mapping[str, float], why: Why) -> Capacity:
    def missed(point: Point) -> list[str]:
        return [name for name, limit in limits.items() if (getattr(point, name) or 0.0) > limit]

    bad = next((i for i, point in enumerate(line) if missed(point)), None)
    tokens = line[0].tokens if line else 0.0
    if bad is None:
        return Capacity(
            policy, line[-1].rate if line else 0.0, True, "nothing yet", "every rate that was tried is held", tokens
        )
    limit, because = why(line[bad], tuple(missed(line[bad])))
    if bad == 0:
        return Capacity(policy, 0.0, False, limit, because, tokens)
    crossings = [_crossing(line[bad - 1], line[bad], key, limits[key]) for key in missed(line[bad])]
    return Capacity(policy, min(crossings), False, limit, because, tokens)


def _crossing(low: Point, high: Point, metric: str, limit: float) -> float:
    """The rate at which `metric` reaches `limit`, between two rates."""
    below, above = getattr(low, metric) or limit / 1e3, getattr(high, metric)
    share = math.log(limit / below) / math.log(above / below) if above > below > 0 else 0.0
    return low.rate * (high.rate / low.rate) ** min(max(share, 0.0), 1.0)
