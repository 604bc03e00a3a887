"""Fixtures of the kernel tests."""

from __future__ import annotations

import warnings

import pytest
import torch


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The first CUDA device; without one the test is skipped, and says so."""
    if not torch.cuda.is_available():
        warnings.warn("no NVIDIA GPU here: the kernels' tests on the device are skipped", stacklevel=1)
        pytest.skip("needs an NVIDIA GPU")
    return torch.device("cuda", 0)
