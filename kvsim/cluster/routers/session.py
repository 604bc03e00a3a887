"""By conversation."""

from __future__ import annotations

from collections.abc import Sequence as Many

from kvsim.cache.base import Sequence
from kvsim.cluster.router import ROUTERS, Member, Router

_MIX = 0x9E3779B97F4A7C15  # splitmix64's constants


def mixed(value: int) -> int:
    """64 well mixed bits of an integer (splitmix64): Python's own hash of an int is the int."""
    value = (value + _MIX) & (2**64 - 1)
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & (2**64 - 1)
    return value ^ (value >> 31)


@ROUTERS("session")
class Session(Router):
    """A conversation stays on one replica, chosen by rendezvous hashing: when one goes only its conversations move."""

    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        session = int(self.trace.session[seq.row])
        key = mixed(session if session >= 0 else ~seq.row)
        return max(members, key=lambda member: mixed(key ^ member.index))
