"""A link on the clock: one transfer at a time, first come first served.

First come first served with one lane needs no queue: a transfer begins when it is asked for or when the one before it
has ended, so only what somebody waits for is an event.
"""

from __future__ import annotations

from collections.abc import Callable

import simpy

from kvsim.cache.tier import Tier
from kvsim.units import NS_PER_S


class Link:
    """The link between a device and its host. Both directions share it."""

    def __init__(self, env: simpy.Environment, tier: Tier) -> None:
        self._env = env
        self._latency_ns, self._bandwidth = tier.latency_ns, tier.bandwidth
        self._free_ns = 0
        """when the last transfer ends"""
        self.busy_ns = 0

    def send(self, size: int, at: int, arrived: Callable[[], None] | None) -> None:
        """Queue `size` bytes at time `at`, not before any that were queued; `arrived` is called when they are over."""
        time = self._latency_ns - (-size * NS_PER_S // self._bandwidth)
        self.busy_ns += time
        self._free_ns = max(at, self._free_ns) + time
        if arrived is not None:
            over = self._env.timeout(self._free_ns - int(self._env.now))
            over.callbacks.append(lambda _: arrived())
