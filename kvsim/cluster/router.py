"""What a router sees and answers. One file in `routers/` adds one: subclass, and register it under its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Many
from typing import Protocol

from kvsim.cache.base import Sequence
from kvsim.registry import Registry
from kvsim.trace.types import Trace


class Member(Protocol):
    """A replica as its router sees it: what a gateway can know without asking the engine, and its cache."""

    index: int
    requests: int
    """routed there and not ended"""
    tokens: int
    """of their prompts"""
    capacity: int
    """tokens its KV pool holds"""

    @property
    def waiting(self) -> int:
        """Requests there that are not running yet."""
        ...

    def cached(self, seq: Sequence) -> int:
        """Prompt tokens of `seq` in its prefix cache now."""
        ...


class Router(ABC):
    """Chooses a replica for every request when it arrives. Deterministic: ties go to the lowest index."""

    pulls: bool = False
    """whether replicas take requests from one queue themselves, and nothing is chosen"""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @abstractmethod
    def choose(self, seq: Sequence, members: Many[Member]) -> Member:
        """One of `members` (at least one, in order of index): the same list until a replica comes or goes."""

    def lost(self, member: Member) -> None:
        """`member` has lost its cache."""
        return


def load(member: Member) -> tuple[float, int, int]:
    """Share of its pool that the prompts in flight ask for; then requests, then index."""
    return member.tokens / max(1, member.capacity), member.requests, member.index


ROUTERS: Registry[type[Router]] = Registry("router")
