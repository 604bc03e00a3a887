"""A link as a SimPy resource: one transfer at a time, first come first served."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from kvsim.cache.tier import Tier


class Link:
    """The link between a device and its host. Both directions share it."""

    def __init__(self, env: simpy.Environment, tier: Tier) -> None:
        self._env = env
        self._tier = tier
        self._lane = simpy.Resource(env)
        self.busy_ns = 0

    def send(self, size: int, arrived: Callable[[], None] | None) -> None:
        """Queue `size` bytes; `arrived` is called when they are over."""
        self._env.process(self._transfer(size, arrived))

    def _transfer(self, size: int, arrived: Callable[[], None] | None) -> Generator[simpy.Event, Any, None]:
        with self._lane.request() as lane:
            yield lane
            time = self._tier.transfer_ns(size)
            yield self._env.timeout(time)
            self.busy_ns += time
        if arrived is not None:
            arrived()
