"""One after the other."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router
from kvsim.trace.types import Trace


@ROUTERS("round-robin")
class RoundRobin(Router):
    """Each request to the next replica, whatever it has to do."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._turn = 0

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        self._turn += 1
        return members[(self._turn - 1) % len(members)]
