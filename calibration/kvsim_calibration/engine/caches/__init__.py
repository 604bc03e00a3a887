"""KV caches of the reference engine: real tensors behind one interface (base.py)."""

from kvsim_calibration.engine.caches.base import Batch, Cache, PerSequence
from kvsim_calibration.engine.caches.contiguous import Contiguous
from kvsim_calibration.engine.caches.evicting import HeavyHitter, Window
from kvsim_calibration.engine.caches.paged import Paged
from kvsim_calibration.engine.caches.store import Rows, Store
from kvsim_calibration.engine.caches.uncached import Uncached

__all__ = ["Batch", "Cache", "Contiguous", "HeavyHitter", "Paged", "PerSequence", "Rows", "Store", "Uncached", "Window"]
