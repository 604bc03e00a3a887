"""`CostModel`: how long one engine step takes. The equation is in docs/cost-model.md."""

from __future__ import annotations

from operator import add

import numpy as np
from numpy.typing import NDArray

from kvsim.cost.attention import DecodeRow, GroupAttention
from kvsim.cost.error import Band, PartCost, band, merge, worst
from kvsim.cost.geometry import Geometry
from kvsim.cost.host import HostOverhead
from kvsim.cost.kernels import geometry
from kvsim.cost.line import Floats
from kvsim.cost.policy import PolicyWork
from kvsim.cost.shape import StepShape
from kvsim.cost.table import TokenTable
from kvsim.device import DeviceProfile, Provenance
from kvsim.device.keys import AttentionKernel
from kvsim.device.provenance import Tier
from kvsim.model import ModelSpec

SCALAR_RUN = 24
"""runs up to this length are computed one by one: NumPy's calls cost more (see benchmarks/cost.py)"""
AHEAD: Floats = np.arange(4096, dtype=np.float64)


class _DecodeStep:
    """What is fixed for steps that only decode n sequences, each of which samples."""

    __slots__ = ("exposed", "fixed", "rows", "tokens_ns")

    def __init__(self, tokens_ns: float, head_ns: float, rows: tuple[DecodeRow, ...], exposed: float) -> None:
        self.tokens_ns, self.fixed, self.rows = tokens_ns, tokens_ns + head_ns, rows
        self.exposed = exposed + 0.5
        """ns that the host adds, and the half that turns truncation into rounding"""


class CostModel:
    """Step times of one model on one device under one engine, in integer ns.

    A step's price does not depend on the number of its sequences: what depends on m tokens is tabulated by m, decode
    attention by n sequences as a piecewise linear function of the tokens attended, both on first use."""

    def __init__(self, kernels: Geometry, device: DeviceProfile, host: HostOverhead | None = None) -> None:
        self.geometry, self.device, self.host = kernels, device, host or HostOverhead()
        self._table = TokenTable(kernels, device)
        self._groups = tuple(GroupAttention(group, device) for group in kernels.attention)
        self._policy = PolicyWork(kernels, device)
        self._steps: dict[int, _DecodeStep] = {}
        self._gpu_factor = self._host_factor = 1.0
        self._decode_factor = self.host.decode_factor
        self._overlapped = self.host.overlapped_ns

    @classmethod
    def of(cls, model: ModelSpec, device: DeviceProfile, host: HostOverhead | None = None, *, tp: int = 1, ep: int = 1,
           dp: int = 1, weights_dtype: str | None = None, kv_dtype: str = "bf16",
           attention: AttentionKernel = "flash", block_size: int = 16, repeated_reads: float = 0.0) -> CostModel:
        """The cost of `model` split over `tp` devices; see `kvsim.cost.kernels.geometry`."""
        return cls(geometry(model, tp=tp, ep=ep, dp=dp, weights_dtype=weights_dtype, kv_dtype=kv_dtype,
                            attention=attention, block_size=block_size, repeated_reads=repeated_reads), device, host)

    def scaled(self, factor: float, host: float | None = None) -> CostModel:
        """The same model with all times × `factor`, or the engine's constants × `host`; its tables are shared.

        The interval of a run comes from two more, scaled by the `low` and the `high` of `error_band`."""
        other = self._sibling()
        other._table, other._groups, other._policy = self._table, self._groups, self._policy
        other._gpu_factor = self._gpu_factor * factor
        other._decode_factor = other._gpu_factor * self.host.decode_factor
        other._host_factor = self._host_factor * (factor if host is None else host)
        other._overlapped = self.host.overlapped_ns * other._host_factor
        return other

    def _sibling(self) -> CostModel:
        """Another of the same parts."""
        return CostModel(self.geometry, self.device, self.host)

    @property
    def factor(self) -> float:
        """What `scaled` has made of the device's times."""
        return self._gpu_factor

    def step(self, shape: StepShape) -> int:
        """ns of one step."""
        n = shape.decode
        if shape.chunks or not n:
            return self._chunked_step(shape)
        step = self._steps.get(n) or self._decode_step(n)
        gpu = self._without_attention(step, shape)
        for row, attended, longest in zip(step.rows, shape.attended, shape.longest, strict=True):
            gpu += row.at(attended, longest)
        gpu *= self._decode_factor
        return int((gpu if gpu > self._overlapped else self._overlapped) + step.exposed)

    def short_run(self, shape: StepShape, k: int) -> list[int]:
        """`decode_run` in plain Python: faster up to about SCALAR_RUN steps."""
        step = self._steps.get(shape.decode) or self._decode_step(shape.decode)
        factor, overlapped, exposed = self._decode_factor, self._overlapped, step.exposed
        times = self._run_without_attention(step, shape, k)
        for g, row in enumerate(step.rows):
            more = row.run(shape.attended[g], shape.growing[g], shape.longest[g], shape.longest_grows[g], k)
            times = list(map(add, times, more))
        return [
            int((gpu if (gpu := time * factor) > overlapped else overlapped) + exposed) for time in times
        ]

    def decode_run(self, shape: StepShape, k: int) -> NDArray[np.int64]:
        """ns of each of k consecutive steps that only decode, the first of them `shape`. Element j equals `step` of
        the shape whose attended tokens have grown by j · growing and whose longest has grown by j where it grows.
        Scored tokens grow with those that the first group attends; moved bytes are the first step's alone."""
        if k <= SCALAR_RUN:
            return np.array(self.short_run(shape, k), dtype=np.int64)
        step = self._steps.get(shape.decode) or self._decode_step(shape.decode)
        factor, overlapped, exposed = self._decode_factor, self._overlapped, step.exposed
        ahead = AHEAD[:k] if k <= len(AHEAD) else np.arange(k, dtype=np.float64)
        run: Floats = np.array(self._run_without_attention(step, shape, k))
        for g, row in enumerate(step.rows):
            run += row.over(shape.attended[g], shape.growing[g], shape.longest[g], shape.longest_grows[g], ahead)
        run *= factor
        np.maximum(run, overlapped, out=run)
        run += exposed
        return run.astype(np.int64)

    def _decode_step(self, n: int) -> _DecodeStep:
        rows = tuple(group.row(n) for group in self._groups)
        exposed = self.host.exposed(n, prefill=False) * self._host_factor
        step = self._steps[n] = _DecodeStep(self._table.tokens(n), self._table.rows(n), rows, exposed)
        return step

    def _without_attention(self, step: _DecodeStep, shape: StepShape) -> float:
        if shape.sampled == shape.decode and not shape.scored and not shape.moved_bytes:
            return step.fixed
        return step.tokens_ns + self._rest(shape)

    def _run_without_attention(self, step: _DecodeStep, shape: StepShape, k: int) -> list[float]:
        """`_without_attention` of k consecutive steps."""
        first = self._without_attention(step, shape)
        if not shape.scored and not shape.moved_bytes:
            return [first] * k
        head, growing = self._table.rows(shape.sampled), shape.growing[0] if shape.scored else 0
        work = [self._policy.ns(shape.scored + j * growing, 0) for j in range(1, k if growing else min(k, 2))]
        later = [step.tokens_ns + (head + ns) for ns in work]
        return [first, *later] if growing else [first, *later * (k - 1)]

    def _rest(self, shape: StepShape) -> float:
        """ns of lm_head, sampling and the cache policy's own work."""
        head = self._table.rows(shape.sampled)
        if shape.scored or shape.moved_bytes:
            return head + self._policy.ns(shape.scored, shape.moved_bytes)
        return head

    def _chunked_step(self, shape: StepShape) -> int:
        n, chunks, host = shape.decode, shape.chunks, self.host
        gpu = self._table.tokens(shape.tokens) + self._rest(shape)
        exposed = host.exposed_ns + host.exposed_per_sequence_ns * (n + len(chunks))
        if n and chunks:
            for g, group in enumerate(self._groups):
                prefill, decode = group.fused_ns(chunks, n, shape.attended[g], shape.longest[g])
                gpu += prefill + decode
        elif chunks:
            for group in self._groups:
                gpu += group.prefill_ns(chunks)
        overlapped = self._beside(bool(chunks))
        if chunks:
            gpu *= self._gpu_factor * host.prompt_factor
            exposed += host.exposed_prefill_ns
        else:
            gpu *= self._decode_factor
        return int((gpu if gpu > overlapped else overlapped) + exposed * self._host_factor + 0.5)

    def _beside(self, prefill: bool) -> float:
        """ns of the host's work that runs beside the device."""
        launch = self.host.launch_ns * self._host_factor
        return launch if prefill and launch > self._overlapped else self._overlapped

    def _attention(self, shape: StepShape) -> list[tuple[float, float]]:
        """(prefill ns, decode ns) of each group."""
        n, chunks = shape.decode, shape.chunks
        if not n:
            return [(group.prefill_ns(chunks) if chunks else 0.0, 0.0) for group in self._groups]
        if not chunks:
            return [(0.0, group.row(n).at(shape.attended[g], shape.longest[g])) for g, group in enumerate(self._groups)]
        return [group.fused_ns(chunks, n, shape.attended[g], shape.longest[g]) for g, group in enumerate(self._groups)]

    def _kernel_factor(self, shape: StepShape) -> float:
        return self._gpu_factor * self.host.prompt_factor if shape.chunks else self._decode_factor

    def _exposed(self, shape: StepShape) -> float:
        return self.host.exposed(shape.decode + len(shape.chunks), bool(shape.chunks)) * self._host_factor

    def parts(self, shape: StepShape) -> dict[str, PartCost]:
        """What a step's time is made of, each term with its tier and error. The terms add up to `step` (± 1 ns):
        `host` is what the device waits for."""
        found: dict[str, list[PartCost]] = {}
        for name, cost in self._table.parts(shape.tokens, shape.sampled):
            found.setdefault(name, []).append(cost)
        for g, (group, (prefill, decode)) in enumerate(zip(self._groups, self._attention(shape), strict=True)):
            if shape.chunks:
                found.setdefault("attention_prefill", []).append(group.prefill_part(shape.chunks, prefill))
            if shape.decode:
                cost = group.decode_part(shape.decode, shape.attended[g], decode, fused=bool(shape.chunks))
                found.setdefault("attention_decode", []).append(cost)
        found.update(self._policy.parts(shape.scored, shape.moved_bytes))
        factor = self._kernel_factor(shape)
        parts = {name: merge(costs).times(factor) for name, costs in found.items()}
        gpu = sum(cost.ns for cost in parts.values())
        waits = max(gpu, self._beside(bool(shape.chunks))) - gpu + self._exposed(shape)
        parts["host"] = PartCost(waits, "imported", "exact", self.host.spread / 2, self.host.spread, "engine profile")
        return parts

    def error_band(self, shape: StepShape) -> Band:
        """Factors on `step(shape)` between which the truth lies in 90 % of cases."""
        return band(self.parts(shape).values(), self.host.kernel_spread)

    def tier(self, shape: StepShape) -> Tier:
        """The worst tier among the terms that make up at least a tenth of the step."""
        parts = self.parts(shape)
        total = sum(cost.ns for cost in parts.values())
        return worst(cost.tier for name, cost in parts.items() if name != "host" and cost.ns >= 0.1 * total)

    def typical(self) -> StepShape:
        """A step to quote tier and error on where none is at hand: 32 sequences of 1024 tokens, a chunk of 512."""
        seen = [min(1024, group.decode.window or 1024) for group in self.geometry.attention]
        return StepShape(decode=32, attended=tuple(32 * x for x in seen), longest=tuple(seen), growing=(0,) * len(seen),
                         longest_grows=(False,) * len(seen), chunks=((512, 0),), sampled=33)

    def provenance(self) -> dict[str, Provenance]:
        """Where the device's curves come from, by source name."""
        return dict(self.device.provenance)

    def workspace_bytes(self, shape: StepShape) -> int:
        """Device memory that attention needs for a step beside the activations: the S × S scores and probabilities of
        one layer in 2 bytes each under the naive kernel, nothing under the flash kernel."""
        most = 0
        for g, group in enumerate(self.geometry.attention):
            if group.prefill.kernel == "naive":
                scores = sum(chunk * (context + chunk) for chunk, context in shape.chunks)
                scores += shape.attended[g] if shape.decode else 0
                most = max(most, 4 * group.prefill.heads * scores)
        return most
