"""KV caches of the reference engine: real tensors behind one interface (base.py)."""

from kvsim_calibration.engine.caches.base import Batch, Cache, PerSequence, Rows
from kvsim_calibration.engine.caches.plain import Contiguous, Uncached

__all__ = ["Batch", "Cache", "Contiguous", "PerSequence", "Rows", "Uncached"]
