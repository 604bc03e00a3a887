"""By the prefixes it has sent before."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router, load
from kvsim.trace.types import Trace

SLACK, EXTRA = 1.5, 8
"""a replica with more than SLACK × the mean + EXTRA requests in flight gets nothing for its prefixes' sake"""


@ROUTERS("prefix-affinity")
class PrefixAffinity(Router):
    """Where the longest known beginning of the prompt was sent last, unless that replica is overloaded; else the least
    loaded. It remembers what it sent, and does not know what a cache has evicted."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._sent: dict[int, int] = {}
        """block id → replica it was sent to last; ids are chained, so an id stands for all before it"""
        self._members: Many[Member] = ()
        self._alive: dict[int, Member] = {}

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        blocks: list[int] = self.trace.blocks(seq.row).tolist()
        if members is not self._members:
            self._members, self._alive = members, {member.index: member for member in members}
        chosen = None
        for block in reversed(blocks):
            chosen = self._alive.get(self._sent.get(block, -1))
            if chosen is not None:
                break
        if chosen is None or self._overloaded(chosen, members):
            chosen = min(members, key=load)
        for block in blocks:
            self._sent[block] = chosen.index
        return chosen

    @staticmethod
    def _overloaded(member: Member, members: Many[Member]) -> bool:
        if member.requests <= EXTRA:  # whatever the others have
            return False
        mean = sum([other.requests for other in members]) / len(members)
        return member.requests > SLACK * mean + EXTRA

    def lost(self, member: Member) -> None:
        self._sent = {block: index for block, index in self._sent.items() if index != member.index}
