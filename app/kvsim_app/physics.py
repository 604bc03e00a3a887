"""Small questions to the cost model and the memory plan: what the lessons, the calculator and the cost page draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvsim.cost import CostModel, PartCost, StepShape
from kvsim.device import DeviceProfile
from kvsim.model import ModelSpec
from kvsim.precision import FORMATS
from kvsim.units import NS_PER_S

Float = NDArray[np.float64]
T = TypeVar("T")


def decode_shape(model: ModelSpec, sequences: int, context: int, chunk: int = 0) -> StepShape:
    """`sequences` that decode over `context` tokens each, and a prefill chunk beside them."""
    seen = tuple(min(context, g.window) if g.window else context for g in model.attention_groups)
    none = (0,) * len(seen)
    return StepShape(
        decode=sequences,
        attended=tuple(length * sequences for length in seen),
        longest=seen,
        growing=none,
        longest_grows=(False,) * len(seen),
        chunks=((chunk, 0),) if chunk else (),
        sampled=sequences + (1 if chunk else 0),
    )


def prefill_shape(tokens: int) -> StepShape:
    """One prompt of `tokens`, at once."""
    return StepShape(chunks=((tokens, 0),), sampled=1)


def cached_and_uncached(
    cost: CostModel, model: ModelSpec, prompt: int, outputs: int, points: int = 48
) -> tuple[Float, Float, Float]:
    """(tokens produced, seconds with a cache, seconds without): time until the n-th token of one request, alone.

    Steps are priced at `points` lengths and interpolated between them."""
    knots = np.unique(np.linspace(0, max(outputs - 1, 1), points).round().astype(int))
    again = np.array([cost.step(prefill_shape(prompt + i)) for i in knots.tolist()], float)
    once = np.array([cost.step(decode_shape(model, 1, prompt + i)) for i in knots.tolist()], float)
    once_first = float(cost.step(prefill_shape(prompt)))
    steps = np.arange(outputs)
    without = np.cumsum(np.interp(steps, knots, again))
    times = np.interp(steps, knots, once)
    times[0] = once_first
    return steps + 1.0, np.cumsum(times) / NS_PER_S, without / NS_PER_S


@dataclass(frozen=True)
class Dot:
    """A term of a step on the roofline."""

    step: str
    part: str
    intensity: float
    """FLOP a byte"""
    flops: float
    """FLOP/s reached"""
    ns: float
    tier: str


def roofline_dots(
    cost: CostModel, model: ModelSpec, shapes: dict[str, StepShape], weights: str, kv: str, tp: int
) -> list[Dot]:
    """Linear layers and decode attention of each step: work from the model's shape, time from the cost model."""
    dots = []
    width = FORMATS[weights].bits / 8
    for name, shape in shapes.items():
        parts = cost.parts(shape)
        m = shape.tokens
        dense = [op for op in model.linear_ops(tp) if op.kind in ("dense", "router")]
        if dense and "linear" in parts:
            flops = sum(2.0 * m * op.n * op.k * op.layers for op in dense)
            moved = sum((op.n * op.k * width + 2.0 * m * (op.n + op.k)) * op.layers for op in dense)
            dots.append(_dot(name, "linear layers", flops, moved, parts["linear"]))
        if shape.decode and "attention_decode" in parts:
            flops = moved = 0.0
            for group, attended in zip(model.attention_groups, shape.attended, strict=True):
                flops += 2.0 * group.heads_per_gpu(tp) * (group.head_dim + group.value_dim) * attended * group.layers
                moved += float(group.kv_bytes_per_token(kv, tp)) * attended * group.layers
            dots.append(_dot(name, "decode attention", flops, moved, parts["attention_decode"]))
        if shape.chunks and "attention_prefill" in parts:
            tokens = shape.chunks[0][0]
            pairs = tokens * (tokens + 1) / 2
            flops = sum(
                2.0 * g.heads_per_gpu(tp) * (g.head_dim + g.value_dim) * pairs * g.layers
                for g in model.attention_groups
            )
            moved = sum(
                (4.0 * g.heads_per_gpu(tp) * g.head_dim + 2 * g.kv_bytes_per_token(kv, tp)) * tokens * g.layers
                for g in model.attention_groups
            )
            dots.append(_dot(name, "prefill attention", flops, moved, parts["attention_prefill"]))
    return dots


def _dot(step: str, part: str, flops: float, moved: float, cost: PartCost) -> Dot:
    return Dot(step, part, flops / moved, flops / (cost.ns / NS_PER_S), cost.ns, cost.tier)


@dataclass(frozen=True)
class Knot:
    """A measured point of a profile: how its time compares with the physical form's."""

    curve: str
    at: float
    ratio: float
    source: str


def knots(device: DeviceProfile, family: str) -> tuple[str, list[Knot]]:
    """(what the axis is, measured points) of one family of curves, a few curves that differ most in size."""
    if family == "linear layers":
        found = [
            Knot(f"{n}×{k} {table.dtype}", m, ratio, table.source)
            for table in device.curves.linear
            for (n, k), row in _spread(list(zip(table.shapes, table.ratio, strict=True)), 5)
            for m, ratio in zip(table.m, row, strict=True)
        ]
        return "rows m", found
    curves = device.curves.decode if family == "decode attention" else device.curves.prefill
    counted = "sequences" if family == "decode attention" else "tokens"
    found = []
    for curve in curves[:1]:
        rows = list(zip(curve.table.outer, curve.table.inner, curve.table.ratio, strict=True))
        for outer, inner, ratios in _spread(rows, 6):
            found += [
                Knot(f"{outer:g} {counted if outer != 1 else counted[:-1]}", at, ratio, curve.source)
                for at, ratio in zip(inner, ratios, strict=True)
                if at > 0
            ]
    return "attended tokens", found


def _spread(items: list[T], most: int) -> list[T]:
    """At most so many of `items`, evenly from first to last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
