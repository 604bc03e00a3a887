"""Decoding sequences, counted: what they hold and will take, without a walk over them.

Each grows by a token a step, so it takes a block on the steps where its length is a multiple of the block size: one
counter a residue class of `base` (tokens − step) tells how many blocks the next k steps take. The caller counts steps.
"""

from __future__ import annotations

from kvsim.cache.base import most_steps


class Growth:
    """The decoding sequences of a cache with blocks of `size` tokens."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0
        """sequences"""
        self._bases = 0
        self._residue = [0] * size
        """sequences by their base modulo the block size"""

    def join(self, base: int) -> None:
        """One more, of `base` + step tokens."""
        self.count += 1
        self._bases += base
        self._residue[base % self.size] += 1

    def leave(self, base: int) -> None:
        self.count -= 1
        self._bases -= base
        self._residue[base % self.size] -= 1

    def tokens(self, step: int) -> int:
        """Tokens that all hold at `step`."""
        return self._bases + self.count * step

    def blocks(self, step: int, steps: int) -> int:
        """Blocks that the `steps` steps from `step` on take."""
        residue, size = self._residue, self.size
        at = -step % size
        if steps == 1:
            return residue[at]
        whole, rest = divmod(steps, size)
        if rest > at + 1:
            return whole * self.count + sum(residue[: at + 1]) + sum(residue[at + 1 - rest :])
        return whole * self.count + sum(residue[at + 1 - rest : at + 1])

    def horizon(self, step: int, room: int, limit: int) -> int:
        """How many steps (0 … limit) from `step` on take at most `room` blocks."""
        if self.count * (limit // self.size + 1) <= room:
            return limit
        return most_steps(lambda steps: self.blocks(step, steps) <= room, limit)
