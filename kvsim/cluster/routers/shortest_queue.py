"""By requests that wait."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router


@ROUTERS("shortest-queue")
class ShortestQueue(Router):
    """The replica with the fewest waiting requests; of equals, the one with the fewest in flight."""

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        return min(members, key=lambda member: (member.waiting, member.requests, member.index))
