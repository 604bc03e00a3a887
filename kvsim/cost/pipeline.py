"""Pipeline parallelism: the batch goes through the stages in as many micro-batches.

In steady state every stage works on another micro-batch, and each may begin its next step when it has left the last
stage. With micro-batches that take t_i through all stages, a stage is busy for Σ t_i ÷ stages, and the slowest micro-
batch needs max t_i for its own way: a step of them all takes the larger of both, which is max t_i. The bubble is what
the others wait for it: a lone prompt uses one stage at a time and gains nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvsim.cost.error import PartCost
from kvsim.cost.geometry import Geometry
from kvsim.cost.host import HostOverhead
from kvsim.cost.model import CostModel
from kvsim.cost.shape import StepShape
from kvsim.device import DeviceProfile
from kvsim.device.forms import ACTIVATION_BYTES

SEND_MEDIAN, SEND_P95 = 0.3, 1.0
"""relative error of a transfer between stages by the link's data sheet: nobody has measured it here"""


class PipelineCost(CostModel):
    """Steps of `stages` pipeline stages; everything else as CostModel, whose kernels are those of all layers."""

    def __init__(self, kernels: Geometry, device: DeviceProfile, host: HostOverhead | None, *, stages: int,
                 hidden: int, budget: int) -> None:
        """`budget`: most tokens of a micro-batch; a longer chunk is cut and its pieces follow each other."""
        super().__init__(kernels, device, host)
        self.stages = stages
        self._budget = budget
        self._hidden, self._token_bytes = hidden, hidden * ACTIVATION_BYTES

    def _sibling(self) -> CostModel:
        return PipelineCost(
            self.geometry, self.device, self.host, stages=self.stages, hidden=self._hidden, budget=self._budget
        )

    def micro(self, shape: StepShape) -> StepShape:
        """The largest micro-batch of a step: an even share of its sequences, and the most prefill tokens where pieces
        are dealt out longest first."""
        stages, n = self.stages, shape.decode
        decode = -(-n // stages)
        pieces = [(min(self._budget, tokens - at), context + at)
                  for tokens, context in shape.chunks for at in range(0, tokens, self._budget)]
        bins: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
        for piece in sorted(pieces, reverse=True):
            min(bins, key=lambda found: sum(tokens for tokens, _ in found)).append(piece)
        chunks = tuple(max(bins, key=lambda found: sum(tokens for tokens, _ in found)))
        return StepShape(
            decode=decode, attended=tuple(-(-total * decode // n) for total in shape.attended) if n else shape.attended,
            longest=shape.longest, growing=shape.growing, longest_grows=shape.longest_grows, chunks=chunks,
            sampled=-(-shape.sampled // stages), scored=-(-shape.scored // stages),
            moved_bytes=-(-shape.moved_bytes // stages),
        )

    def send_ns(self, tokens: int) -> float:
        """Hidden states from stage to stage, and the sampled tokens back to the first."""
        facts = self.device.facts
        each = facts.link_latency_ns + tokens * self._token_bytes / facts.link_bandwidth
        return ((self.stages - 1) * each + facts.link_latency_ns) * self.factor

    def step(self, shape: StepShape) -> int:
        micro = self.micro(shape)
        return super().step(micro) + round(self.send_ns(micro.tokens))

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        return [self.step(_later(shape, j)) for j in range(k)]

    def decode_run(self, shape: StepShape, k: int) -> NDArray[np.int64]:
        return np.array(self.short_run(shape, k), dtype=np.int64)

    def parts(self, shape: StepShape) -> dict[str, PartCost]:
        micro = self.micro(shape)
        sent = PartCost(self.send_ns(micro.tokens), "datasheet", "form", SEND_MEDIAN, SEND_P95, "facts")
        return {**super().parts(micro), "send": sent}


def _later(shape: StepShape, steps: int) -> StepShape:
    """A decode step `steps` after `shape`."""
    return StepShape(
        decode=shape.decode, growing=shape.growing, longest_grows=shape.longest_grows, sampled=shape.sampled,
        attended=tuple(a + steps * g for a, g in zip(shape.attended, shape.growing, strict=True)),
        longest=tuple(a + steps * g for a, g in zip(shape.longest, shape.longest_grows, strict=True)),
        scored=shape.scored + steps * shape.growing[0] if shape.scored else 0,
        moved_bytes=0 if steps else shape.moved_bytes,
    )
