"""Many scenarios: read from a TOML file, run anywhere, kept one by one, read back as one table (docs/sweep.md)."""

from kvsim.sweep.grid import read_sweep
from kvsim.sweep.running import Outcome, sweep
from kvsim.sweep.store import Store

__all__ = ["Outcome", "Store", "read_sweep", "sweep"]
