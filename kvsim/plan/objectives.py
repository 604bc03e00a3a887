"""What the user demands: `ttft_p99=2s,tpot_p99=50ms,refused=1%`, and whether a run gives it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.plan.traffic import Offer
from kvsim.record import COMPLETED, REFUSED, Recorder
from kvsim.registry import unknown
from kvsim.trace.types import Trace
from kvsim.units import NS_PER_S, parse_duration_ns, seconds

Float = NDArray[np.float64]
METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
_NAME = re.compile(r"([a-z0-9]+)(?:_(mean|max|p[0-9.]+))?")
GROWTH = 0.05
"""a queue whose wait grows by more than this many seconds a second is not kept up with: a run of any length would do,
but a short one ends before the wait passes a limit"""
BEYOND = 20
"""requests that a percentile must leave above itself to be worth a search"""


@dataclass(frozen=True, slots=True)
class Objective:
    """One statistic of one latency, and its limit in seconds."""

    metric: str
    statistic: str
    """mean, max, or p and a percentage"""
    limit_s: float

    @property
    def name(self) -> str:
        return f"{self.metric}_{self.statistic}"

    @property
    def quantile(self) -> float | None:
        """0 … 1; None for the mean."""
        if self.statistic == "mean":
            return None
        return 1.0 if self.statistic == "max" else float(self.statistic[1:]) / 100


@dataclass(frozen=True)
class Objectives:
    """All that a run must give. `each`: limits in seconds that one request must keep to count as good, of which at
    least the share `goodput` is needed; at most the share `refused` may be refused."""

    latency: tuple[Objective, ...]
    each: Mapping[str, float] = field(default_factory=dict)
    goodput: float = 0.99
    refused: float = 0.01

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """From `ttft_p99=2s,tpot_p99=50ms,itl_p99.9=200ms,e2e_mean=10s,ttft=5s,goodput=99%,refused=1%`."""
        latency: list[Objective] = []
        each: dict[str, float] = {}
        shares = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise InputError(f"--slo {part!r} is not understood: write metric=limit, such as ttft_p99=2s")
            if name in ("goodput", "refused"):
                shares[name] = _share(name, value)
                continue
            match = _NAME.fullmatch(name)
            if match is None or match[1] not in METRICS:
                raise InputError(f"--slo: {unknown('metric', name, [*METRICS, 'goodput', 'refused'])}")
            limit = _limit(name, value)
            if match[2] is None:
                if match[1] == "itl":
                    raise InputError("--slo itl needs a statistic, such as itl_p99=100ms: it is a limit of no request")
                each[match[1]] = limit
            else:
                latency.append(Objective(match[1], _statistic(name, match[2]), limit))
        if not latency and not each:
            raise InputError("--slo names no latency: write for instance ttft_p99=2s,tpot_p99=50ms")
        if "goodput" in shares and not each:
            raise InputError("--slo goodput needs limits that a request must keep, such as ttft=2s,tpot=50ms")
        return cls(tuple(latency), each, **shares)

    @property
    def requests(self) -> int:
        """Requests a run needs for its percentiles to mean something."""
        rare = [1 - o.quantile for o in self.latency if o.quantile is not None and o.quantile < 1]
        if self.each and self.goodput < 1:
            rare.append(1 - self.goodput)
        return max(1000, *(math.ceil(BEYOND / share - 1e-6) for share in rare)) if rare else 1000

    def measure(self, record: Recorder, offer: Offer, gaps: Gaps | None = None) -> dict[str, float | None]:
        """Every demanded number of a run: latencies in seconds, shares, and the queue's growth in seconds a second.
        `gaps`: between tokens, where those of the lead-in are to be left out."""
        run = Columns(record, offer.trace, offer.judged, gaps)
        found = {o.name: run.statistic(o.metric, o.quantile) for o in self.latency}
        if self.each:
            found["goodput"] = run.good_share(self.each)
        found["refused"] = run.refused_share
        found["growth"] = run.growth()
        return found

    def missed(self, found: Mapping[str, float | None]) -> tuple[str, ...]:
        """Names of what is not met."""
        latency = [o.name for o in self.latency if (found[o.name] or 0.0) > o.limit_s]
        goodput = ["goodput"] if self.each and (found["goodput"] or 0.0) < self.goodput else []
        refused = ["refused"] if (found["refused"] or 0.0) > self.refused else []
        return (*refused, *latency, *goodput, *(["growth"] if (found["growth"] or 0.0) > GROWTH else []))

    def hopeless(self, offer: Offer) -> Callable[[Recorder, int], str | None]:
        """A test, for a run in progress, of whether an objective is missed however it goes on: its name if so.

        Exact: it answers only where more requests are over a limit than the statistic can ever leave out."""
        rows, n = offer.judged, len(offer.judged)
        waits = [(o, n - math.floor(o.quantile * (n - 1))) for o in self.latency
                if o.metric in ("ttft", "queue", "e2e") and o.quantile is not None]
        slow = [(o, n - math.floor(o.quantile * (n - 1))) for o in self.latency
                if o.metric == "tpot" and o.quantile is not None]
        tokens = np.maximum(offer.trace.output_tokens[rows] - 1, 1)
        bad_most = n - math.ceil(self.goodput * n - 1e-9)
        event = {"ttft": "first_token_ns", "queue": "scheduled_ns", "e2e": "last_token_ns"}

        def column(record: Recorder, name: str) -> NDArray[np.int64]:
            return np.frombuffer(record.requests[name], np.int64)[rows]

        def late(record: Recorder, now: int, event: str, limit_s: float) -> int:
            arrival, at = column(record, "arrival_ns"), column(record, event)
            ended = column(record, "last_token_ns")  # a request for no token has no first one
            wait = np.where(at >= 0, at, np.where(ended >= 0, arrival, now)) - arrival
            live = column(record, "status") != REFUSED
            return int(((arrival >= 0) & live & (wait > limit_s * NS_PER_S)).sum())

        def test(record: Recorder, now: int) -> str | None:
            for objective, over in waits:
                if late(record, now, event[objective.metric], objective.limit_s) >= over:
                    return objective.name
            for objective, over in slow:
                first, last = column(record, "first_token_ns"), column(record, "last_token_ns")
                if int(((first >= 0) & ((last - first) / tokens > objective.limit_s * NS_PER_S)).sum()) >= over:
                    return objective.name
            for name, limit_s in self.each.items():
                if name in event and late(record, now, event[name], limit_s) > bad_most:
                    return "goodput"
            return None

        return test


class Gaps:
    """The gaps between tokens in a run's judged period: what was recorded up to its end, less what was before it."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._before: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._after: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def look(self, record: Recorder, now: int) -> None:
        """To be called whenever a request ends: the first end within the period, and the first after it, bound it."""
        if self._before is None and now >= self._offer.begin_ns:
            self._before = record.itl()
        if self._after is None and now >= self._offer.end_ns:
            self._after = record.itl()

    def counted(self, record: Recorder) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(gaps in ns, how often each was seen)."""
        gaps, counts = self._after or record.itl()
        if self._before is None:
            return gaps, counts
        both, place = np.unique(np.concatenate([gaps, self._before[0]]), return_inverse=True)
        left = np.bincount(place[: len(gaps)], counts, len(both)) - np.bincount(
            place[len(gaps) :], self._before[1], len(both))
        return both[left > 0], left[left > 0].astype(np.int64)


class Columns:
    """Latencies of a run's completed requests, in seconds: of all, or of the rows `judged`."""

    def __init__(
        self, record: Recorder, trace: Trace, judged: NDArray[np.int64] | None = None, gaps: Gaps | None = None
    ) -> None:
        rows = np.arange(len(trace)) if judged is None else judged
        columns = {name: column[rows] for name, column in record.request_columns().items()}
        self._record = record
        self._gaps = gaps
        self.requests = len(rows)
        done = columns["status"] == COMPLETED
        self.refused_share = float((columns["status"] == REFUSED).mean()) if len(rows) else 0.0
        arrival, first, last = (columns[name][done] for name in ("arrival_ns", "first_token_ns", "last_token_ns"))
        output = trace.output_tokens[rows][done]
        self.arrival = arrival / NS_PER_S
        nan = np.full(len(arrival), np.nan)
        gaps = np.maximum(output - 1, 1)
        self.values: dict[str, Float] = {
            "ttft": np.where(first >= 0, (first - arrival) / NS_PER_S, nan),
            "tpot": np.where(output > 1, (last - first) / gaps / NS_PER_S, nan),
            "e2e": (last - arrival) / NS_PER_S,
            "queue": (columns["scheduled_ns"][done] - arrival) / NS_PER_S,
        }
        self.output_tokens = int(output.sum())

    def statistic(self, metric: str, quantile: float | None) -> float | None:
        """Mean, or the quantile by linear interpolation (as kvsim.metrics); None where nothing is defined."""
        if metric == "itl":
            return _weighted(*(self._gaps.counted(self._record) if self._gaps else self._record.itl()), quantile)
        values = self.values[metric]
        values = values[~np.isnan(values)]
        if not len(values):
            return None
        return float(values.mean() if quantile is None else np.quantile(values, quantile))

    def good_share(self, each: Mapping[str, float]) -> float:
        good = np.ones(len(self.arrival), bool)
        for name, limit in each.items():
            good &= ~(self.values[name] > limit)
        return float(good.sum()) / max(1, self.requests)

    def growth(self) -> float:
        """How fast the wait grows with the time of arrival: mean queue of the last quarter of requests less that of
        the second, over the time between them."""
        order = np.argsort(self.arrival, kind="stable")
        quarter = len(order) // 4
        if quarter < 8:
            return 0.0
        early, late = order[quarter : 2 * quarter], order[3 * quarter :]
        time = float(self.arrival[late].mean() - self.arrival[early].mean())
        wait = self.values["queue"]
        return float(wait[late].mean() - wait[early].mean()) / time if time > 0 else 0.0


def _weighted(gaps: NDArray[np.int64], counts: NDArray[np.int64], quantile: float | None) -> float | None:
    if not len(gaps):
        return None
    if quantile is None:
        return float(gaps @ counts / counts.sum()) / NS_PER_S
    order = np.argsort(gaps, kind="stable")
    ends = np.cumsum(counts[order])
    place = quantile * (int(ends[-1]) - 1)
    below = int(place)
    low, high = gaps[order][np.searchsorted(ends, [below, min(below + 1, int(ends[-1]) - 1)], side="right")]
    return float(low + (high - low) * (place - below)) / NS_PER_S


def _limit(name: str, value: str) -> float:
    try:
        limit = seconds(parse_duration_ns(value))
    except InputError as error:
        raise InputError(f"--slo {name}: {error}") from None
    if limit <= 0:
        raise InputError(f"--slo {name} is {value}; it must be above zero")
    return limit


def _statistic(name: str, text: str) -> str:
    if text in ("mean", "max"):
        return text
    try:
        percent = float(text[1:])
    except ValueError:
        percent = -1.0
    if not 0 < percent < 100:
        raise InputError(f"--slo {name}: {text} is no percentile; write p50, p99, p99.9, mean or max")
    return f"p{percent:g}"


def _share(name: str, text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"--slo {name} is {text}; it must be a share, such as 0.99 or 99%")
    return share
