"""The order in which SGLang looks at waiting requests: as they came, by priority, or longest cached prefix first."""

from __future__ import annotations

from typing import Literal

from kvsim.cache.radix import RadixTree
from kvsim.cache.radix_pool import Job, RadixPool

Policy = Literal["fcfs", "lpm"]
"""first come first served; longest prefix match"""
REFRESH_EVERY, MOST_MATCHED = 32, 128
"""passes between refreshes of waiting prefixes; waiting requests that are matched at most"""
SHARED_BY_WAITING = 32
"""tokens from which a request's prefix counts as shared with one that waits ahead of it"""


class Order:
    """`priorities`: whether larger priorities go first (fcfs only)."""

    def __init__(self, pool: RadixPool, policy: Policy, priorities: bool) -> None:
        self.pool = pool
        self.policy = policy
        self.priorities = priorities
        self._passes = 0

    def sort(self, waiting: list[Job]) -> None:
        """Put the queue in order; as a side effect, waiting prefixes become recent and are evicted later."""
        longest_first = self.policy == "lpm" and len(waiting) <= MOST_MATCHED
        if longest_first:
            self._sort_by_prefix(waiting)
        elif self.policy == "fcfs" and self.priorities:
            waiting.sort(key=lambda job: (-job.priority, job.queued))
        if waiting and not longest_first and self.pool.eviction == "lru":
            if self._passes % REFRESH_EVERY == 0:
                for job in reversed(waiting[:MOST_MATCHED]):
                    self.pool.match(job, job.tokens)
            self._passes += 1

    def _sort_by_prefix(self, waiting: list[Job]) -> None:
        """Longest cached prefix first. Of requests that share a prefix which is not cached yet, the first goes ahead
        and the others come last, so that they find it cached."""
        rank: dict[Job, float] = {}
        ahead = RadixTree()
        for job in waiting:
            _, prefix = self.pool.match(job, job.tokens)
            rank[job] = -min(prefix, job.tokens - 1)
            if prefix <= SHARED_BY_WAITING:
                key = self.pool.key(job, job.tokens)
                if ahead.match(key).end * self.pool.unit >= SHARED_BY_WAITING:
                    rank[job] = float("inf")
                else:
                    ahead.insert(key)
        waiting.sort(key=rank.__getitem__)
