"""By what every cache really holds."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router


@ROUTERS("kv-aware")
class KvAware(Router):
    """The replica with the least to do: prompt tokens it would have to compute, plus tokens it holds in flight. It asks
    every cache at every arrival, which a real router approximates by the engines' cache events."""

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        return min(members, key=lambda m: (seq.prompt - m.cached(seq) + m.tokens, m.requests, m.index))
