"""The ceilings themselves, as points: copy, read, an empty launch; torch's GEMM; the link to pinned host memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import ceilings
from .points import Point, Subject, void


def points(tiny: bool) -> Iterator[Point]:
    size, side = (1 << 16, 64) if tiny else (1 << 30, 8192)
    part = size // 8

    def copy(device: torch.device, seed: int) -> Subject:
        source, target = noise(size, device, seed), torch.zeros(size, dtype=torch.uint8, device=device)
        return Subject(lambda: ceilings.copy(source, target), lambda: float(not torch.equal(source, target)))

    def read(device: torch.device, seed: int) -> Subject:
        source = noise(size, device, seed)
        sums = torch.zeros(ceilings.blocks(size // 16, device), dtype=torch.int32, device=device)

        def error() -> float:
            want, got = (int(words.sum(dtype=torch.int64)) for words in (source.view(torch.int32), sums))
            return float((got - want) % 2**32 != 0)

        return Subject(lambda: ceilings.read(source, sums), error)

    def empty(device: torch.device, seed: int) -> Subject:
        return Subject(lambda: ceilings.empty(device), lambda: 0.0)

    def gemm(device: torch.device, seed: int) -> Subject:
        a, b = (normal((side, side), device, seed + i) for i in (0, 1))
        out = torch.full_like(a, torch.nan)

        def error() -> float:
            want = a[:4].double() @ b.double()
            return float((out[:4].double() - want).norm() / want.norm())

        return Subject(lambda: void(torch.mm(a, b, out=out)), error)

    def link(device: torch.device, seed: int) -> Subject:
        source = noise(part, device, seed)
        target = torch.zeros(part, dtype=torch.uint8, pin_memory=device.type == "cuda")

        def launch() -> None:
            target.copy_(source, non_blocking=True)

        return Subject(launch, lambda: float(not torch.equal(source.cpu(), target)))

    yield Point("ceiling copy", f"{size} bytes", "copy", 0.0, 2 * size, 0, 2 * size, copy)
    yield Point("ceiling read", f"{size} bytes", "read", 0.0, size, 0, size, read)
    yield Point("ceiling launch", "one empty block", "launch", 0.0, 0, 0, 0, empty)
    yield Point("ceiling gemm", f"torch bf16 {side}^3", "gemm", 5e-3, 6 * side**2, 2 * side**3, 6 * side**2, gemm)
    yield Point("ceiling link", f"torch, {part} bytes to pinned memory", "link", 0.0, part, 0, part, link)


def noise(size: int, device: torch.device, seed: int) -> torch.Tensor:
    """Random bytes."""
    random = torch.Generator(device).manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=device, generator=random)


def normal(shape: tuple[int, ...], device: torch.device, seed: int) -> torch.Tensor:
    """Standard normal bf16 numbers."""
    random = torch.Generator(device).manual_seed(seed)
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(generator=random)
