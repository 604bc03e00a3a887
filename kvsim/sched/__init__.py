"""Schedulers: one file each, found in the registry SCHEDULERS under its name."""

from kvsim.sched import chunked, prefill_first, sglang, static
from kvsim.sched.base import SCHEDULERS

__all__ = ["SCHEDULERS", "chunked", "prefill_first", "sglang", "static"]
