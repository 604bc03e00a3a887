"""Fixtures and markers shared by all tests."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("kvsim", deadline=None)  # a busy machine is no failure
settings.load_profile("kvsim")

SHARED = Path(os.environ.get("KVSIM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder ../shared (real traces, recordings, measurements). A user does not have it: skipped loudly then."""
    if not SHARED.is_dir():
        warnings.warn(f"{SHARED} is missing: tests against real data are skipped", stacklevel=1)
        pytest.skip(f"needs real data in {SHARED}, which is not there (set KVSIM_SHARED)")
    return SHARED
