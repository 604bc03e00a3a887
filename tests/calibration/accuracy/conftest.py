"""A model small enough to be answered step by step, and SmolLM2 where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kvsim_calibration.accuracy.weights import Loaded, default_file
from kvsim_calibration.engine.model import Llama, random_weights
from small_model import DIMS, PROMPT, STEPS, Letters

from kvsim.errors import InputError


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Others test beside us: two threads on a core that is taken wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(DIMS, random_weights(DIMS, seed=1, scale=2.5))  # sharp attention, so that what is dropped is missed


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(DIMS.vocab, (PROMPT + STEPS,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def small(model: Llama) -> Loaded:
    return Loaded("tiny", "random", model, Letters(), 4096, [])


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file. Skipped loudly where it is not installed."""
    try:
        return default_file()
    except InputError as error:
        warnings.warn(str(error), stacklevel=1)
        pytest.skip(str(error))
