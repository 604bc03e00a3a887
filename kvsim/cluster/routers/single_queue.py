"""No router: a bound."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router, load


@ROUTERS("single-queue")
class SingleQueue(Router):
    """One queue for all: a replica takes its head when it has nothing waiting itself, as much as one step computes. No
    router balances better; it knows no prefixes."""

    pulls = True

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        return min(members, key=load)
