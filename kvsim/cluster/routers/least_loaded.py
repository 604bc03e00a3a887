"""By prompt tokens in flight."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router, load


@ROUTERS("least-loaded")
class LeastLoaded(Router):
    """The replica whose prompts in flight take the smallest share of its KV pool."""

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        return min(members, key=load)
