"""What a device can do at most, the denominators of every speed: copy, read, launch nothing."""

from __future__ import annotations

import ctypes

import torch

from . import checks
from .launch import Kernel, multiprocessors

THREADS, DEPTH = 256, 8
COPY = Kernel("ceilings.cu", "ceiling_copy", THREADS)
READ = Kernel("ceilings.cu", "ceiling_read", THREADS)
EMPTY = Kernel("ceilings.cu", "ceiling_empty", THREADS)


def blocks(words: int, device: torch.device) -> int:
    """Enough for the words, at most 8 blocks a multiprocessor (its 2048 threads)."""
    return min(-(-words // (THREADS * DEPTH)), 8 * multiprocessors(device))


def copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """target[...] = source, both uint8 [bytes] on one device, bytes a multiple of 16."""
    checks.tensor("source", source, [None], (torch.uint8,), source.device)
    checks.tensor("target", target, list(source.shape), (torch.uint8,), source.device)
    words = whole_words(source)
    COPY.launch((blocks(words, source.device),), target, source, ctypes.c_int64(words), device=source.device)


def read(source: torch.Tensor, sums: torch.Tensor) -> None:
    """Read source, uint8 [bytes], bytes a multiple of 16; the sum of its 32-bit words is that of `sums`, mod 2^32.

    sums int32 [>= `blocks(bytes // 16, device)`], zero at first: each block of the launch writes one.
    """
    checks.tensor("source", source, [None], (torch.uint8,), source.device)
    words = whole_words(source)
    grid = blocks(words, source.device)
    checks.tensor("sums", sums, [None], (torch.int32,), source.device)
    if len(sums) < grid:
        raise ValueError(f"sums has {len(sums)} entries; {grid} blocks write one each")
    READ.launch((grid,), sums, source, ctypes.c_int64(words), device=source.device)


def empty(device: torch.device) -> None:
    """Launch one block that does nothing."""
    EMPTY.launch((1,), device=device)


def whole_words(source: torch.Tensor) -> int:
    if len(source) % 16:
        raise ValueError(f"source has {len(source)} bytes, which is no multiple of 16")
    return len(source) // 16
