"""Importing this package registers every router."""

from kvsim.cluster.routers import (
    kv_aware,
    least_loaded,
    prefix_affinity,
    round_robin,
    session,
    shortest_queue,
    single_queue,
)

__all__ = [
    "kv_aware", "least_loaded", "prefix_affinity", "round_robin", "session", "shortest_queue", "single_queue",
]  # fmt: skip
