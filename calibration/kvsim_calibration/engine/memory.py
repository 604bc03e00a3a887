"""Memory that costs the same whenever it is used, for the reference engine and the operators that are timed for it."""

from __future__ import annotations

import ctypes
import os

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""torch asks for pages of 2 MB for large tensors where this is 1; it looks at its first allocation, never again"""


def steady_memory() -> None:
    """Ask for huge pages, and for malloc to keep what it has. To be called before torch allocates anything.

    Reading blocks from all over a cache of gigabytes in pages of 4 kB took a decode step a quarter longer than from a
    small one; and activations of some megabytes would be fresh pages in every step, which cost more than what is
    computed on them. Where the system or another malloc than glibc's does not know these, nothing happens."""
    os.environ.setdefault(HUGE_PAGES, "1")
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in ((-1, 2**31 - 1), (-3, 32 << 20)):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD (its maximum)
            libc.mallopt(option, value)
