"""Steady traffic: what a replica meets when a trace's conversations have been beginning at one rate for ever.

A trace has a first and a last request, traffic has neither. Beginnings can be moved closer together, people's think
times can't: sped up, a short trace is all beginnings first and then only follow-ups, and no part of it has the rate and
the number of open conversations that a day of such traffic has. So the trace is taken to be repeated for ever, each
time by new people. A run looks at a piece of that, in which conversations are already going on:

    lead-in                   | one period                                  | lead-out
    fills batch and cache       every request of the trace arrives once       keeps the load up until the judged
    (Warmth says how long)      and is judged, at every rate the same ones    requests have ended

A conversation that began before the piece goes on in it from its first request inside, at the time that the trace
expects; from there on each follow-up waits for its answer. So a little more or less may arrive in the period than was
planned: the rate of a run is what did arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.errors import InputError
from kvsim.plan.people import laps, own_ids
from kvsim.record import REFUSED, Recorder
from kvsim.trace import Trace, transform
from kvsim.trace.types import Int
from kvsim.units import NS_PER_S

LONG_GAP = 0.95
"""quantile of the time between two requests of a conversation beyond which a cache need not remember"""


@dataclass(frozen=True)
class Offer:
    """A piece of traffic to simulate."""

    trace: Trace
    judged: Int
    """the rows of `trace` that are judged, in order of expected arrival"""
    begin_ns: int
    end_ns: int
    """the judged rows are expected in [begin_ns, end_ns)"""

    @classmethod
    def all_of(cls, trace: Trace) -> Offer:
        """The trace as it is: every request is judged, from an empty replica to an empty replica."""
        return cls(trace, np.arange(len(trace)), 0, int(trace.arrival_ns.max(initial=0)) + 1)

    def over(self, record: Recorder) -> bool:
        """Whether every judged request has ended."""
        last, status = (np.frombuffer(record.requests[c], np.int64) for c in ("last_token_ns", "status"))
        return bool(((last[self.judged] >= 0) | (status[self.judged] == REFUSED)).all())

    def arrived(self, record: Recorder) -> int:
        """Requests, judged or not, that did arrive within the period."""
        at = np.frombuffer(record.arrival_ns, np.int64)
        return int(((at >= self.begin_ns) & (at < self.end_ns)).sum())


class Traffic:
    """A trace repeated for ever, at any rate."""

    def __init__(self, trace: Trace) -> None:
        """Raises InputError where all conversations begin at once: then there is no rate to scale."""
        begins = trace.arrival_ns[trace.parent < 0]
        if transform.mean_rate(trace) is None:
            raise InputError(f"{trace.name}: all requests arrive at once, there is no rate to scale: set --arrivals")
        n = len(begins)
        root = transform.roots(trace)
        self.trace = trace
        self._since = trace.arrival_ns - trace.arrival_ns[root]
        """expected time from the conversation's beginning"""
        self._place = (trace.arrival_ns[root] - begins[0]) / (int(begins[-1] - begins[0]) * n / (n - 1))
        """of the conversation's beginning in the period, 0 … 1: the last one is a mean gap before the next first"""
        self._own = own_ids(trace)

    def at(self, rate: float, lead_s: float = 0.0, tail_s: float = 0.0) -> Offer:
        """One period at `rate` requests a second, with so much of lead-in and lead-out."""
        trace, n = self.trace, len(self.trace)
        period = max(1, round(n / rate * NS_PER_S))
        lead, tail = round(lead_s * NS_PER_S), round(tail_s * NS_PER_S)
        planned = np.floor(self._place * period).astype(np.int64) + self._since
        first = -((lead + planned) // period)  # laps of the trace whose copy of a row lies in [−lead, period + tail)
        count = -((planned - period - tail) // period) - first
        row = np.repeat(np.arange(n), count)
        lap = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
        at = planned[row] + lap * period
        order = np.lexsort((row, at))  # parents are expected no later than their children, and stand before them
        row, lap, at = row[order], lap[order], at[order]
        offered = laps(trace, row, lap - lap.min(), at + lead, self._own)
        return Offer(offered, np.flatnonzero((at >= 0) & (at < period)), lead, lead + period)


@dataclass(frozen=True, slots=True)
class Warmth:
    """What it takes until a replica that began empty is as full as it will be."""

    answer_s: float
    """as long as nearly all requests take: then as many are running as do in the long run"""
    filling: float = 0.0
    """requests that fill the prefix cache once: what came before them is evicted. 0: nothing is shared"""
    longest_s: float = 0.0
    """the cache need not look back further than the time between two requests of a conversation"""

    @classmethod
    def of(cls, trace: Trace, answer_s: float, cache_tokens: int) -> Warmth:
        """`cache_tokens`: that a prefix cache holds; 0 where there is none."""
        if not trace.has_ids or not cache_tokens:
            return cls(answer_s)
        follow = trace.parent >= 0
        gaps = (trace.arrival_ns[follow] - trace.arrival_ns[trace.parent[follow]]) / NS_PER_S
        longest = float(np.quantile(gaps, LONG_GAP)) if follow.any() else float("inf")
        return cls(answer_s, cache_tokens / fresh_tokens(trace), longest)

    def lead_s(self, rate: float, requests: int) -> float:
        """Seconds of lead-in at `rate`, of at most `requests` requests."""
        return min(max(self.answer_s, min(self.filling / rate, self.longest_s)), requests / rate)

    def tail_s(self, rate: float, requests: int) -> float:
        """Seconds of lead-out at `rate`."""
        return min(self.answer_s, requests / rate)


def fresh_tokens(trace: Trace) -> float:
    """Mean tokens of a request that no earlier one had: what it adds to a prefix cache that holds everything."""
    ends = trace.all_ends()
    first = np.zeros(len(ends), bool)
    first[trace.block_start[:-1][np.diff(trace.block_start) > 0]] = True
    length = ends - np.where(first, 0, np.roll(ends, 1))
    _, once = np.unique(trace.block_ids, return_index=True)
    tokens = int((trace.prompt_tokens + trace.output_tokens).sum())
    return max(1.0, (tokens - int(length.sum()) + int(length[once].sum())) / max(1, len(trace)))

