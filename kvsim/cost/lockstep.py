"""Replicas that share their experts step together: at every MoE layer each waits for the slowest.

vLLM's data parallelism with expert parallelism is such a machine. Seen from outside it is one engine with twice the
slots whose step takes what its slowest replica takes: a prompt chunk on one makes the decodes of all others wait.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvsim.cost.error import PartCost
from kvsim.cost.model import SCALAR_RUN, CostModel
from kvsim.cost.shape import StepShape


class Lockstep(CostModel):
    """A CostModel of one of `replicas` devices, asked about steps of all of them together."""

    replicas: int = 1

    @classmethod
    def over(cls, replicas: int, one: CostModel) -> Lockstep:
        """`one` device's cost (with its `ep` and `dp`), of `replicas` in step."""
        model = cls(one.geometry, one.device, one.host)
        model.replicas = replicas
        return model

    def _sibling(self) -> CostModel:
        return Lockstep.over(self.replicas, self)

    def slowest(self, shape: StepShape) -> StepShape:
        """The replica with most to do: decodes are shared out evenly, each chunk goes where fewest tokens are."""
        count = self.replicas
        loads: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        for chunk in sorted(shape.chunks, reverse=True):
            min(loads, key=lambda chunks: sum(tokens for tokens, _ in chunks)).append(chunk)
        chunks = max(loads, key=lambda chunks: sum(tokens for tokens, _ in chunks))
        decode = -(-shape.decode // count)
        return replace(
            shape, decode=decode, attended=tuple(-(-x // count) for x in shape.attended),
            growing=tuple(-(-x // count) for x in shape.growing), chunks=tuple(chunks),
            sampled=-(-shape.sampled // count), scored=-(-shape.scored // count),
            moved_bytes=-(-shape.moved_bytes // count),
        )  # fmt: skip

    def step(self, shape: StepShape) -> int:
        return super().step(self.slowest(shape))

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        return super().short_run(self.slowest(shape), k)

    def decode_run(self, shape: StepShape, k: int) -> NDArray[np.int64]:
        if k <= SCALAR_RUN:
            return np.array(self.short_run(shape, k), dtype=np.int64)
        return super().decode_run(self.slowest(shape), k)

    def parts(self, shape: StepShape) -> dict[str, PartCost]:
        return super().parts(self.slowest(shape))
