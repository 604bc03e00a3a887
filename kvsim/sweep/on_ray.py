"""Tasks on a Ray cluster (`pip install kvsim[cluster]`), whose nodes need kvsim and must be able to read the traces.

Ray's own retries are off: a task whose worker or node is lost is tried again twice, as on this machine.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InputError
from kvsim.workers import Failure, Work, attempt

AHEAD = 3
"""tasks handed out for each CPU: enough that none waits for the driver"""


@dataclass(frozen=True)
class Ray:
    """An existing cluster at `address` (host:port or auto), or a new one on this machine where it is None."""

    address: str | None = None
    retries: int = 2

    def run(self, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        try:
            import ray  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            raise InputError("--executor ray needs Ray: pip install 'kvsim[cluster]'") from None
        self._answers()
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"--address {self.address}: no Ray cluster answers there ({error})") from None
        try:
            yield from self._run(ray, work, shared, tasks)
        finally:
            ray.shutdown()

    def _answers(self) -> None:
        """Raises InputError where nobody listens at host:port: Ray itself would try for minutes."""
        host, _, port = (self.address or "").rpartition(":")
        if "/" in host or not (host and port.isdecimal()):
            return
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise InputError(f"--address {self.address}: no Ray cluster answers there ({error})") from None

    def _run(self, ray: Any, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        remote = ray.remote(max_retries=0, num_cpus=1)(attempt)
        common = ray.put(shared)
        todo = deque((number, task, 0) for number, task in enumerate(tasks))
        most = max(2, AHEAD * int(ray.cluster_resources().get("CPU", 1)))
        flying: dict[Any, tuple[int, Any, int]] = {}
        while todo or flying:
            while todo and len(flying) < most:
                entry = todo.popleft()
                flying[remote.remote(work, common, entry[1])] = entry
            ready, _ = ray.wait(list(flying), num_returns=1)
            for reference in ready:
                number, task, deaths = flying.pop(reference)
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayError as error:
                    if deaths < self.retries:
                        todo.appendleft((number, task, deaths + 1))
                        continue
                    answer = Failure(f"its worker died ({type(error).__name__}), {deaths + 1} times", died=True)
                yield number, answer
