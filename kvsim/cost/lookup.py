"""Which curves answer for a key, and with what weight: exact, interpolated, nearest, or the physical form alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvsim.cost.error import How, Origin, origin
from kvsim.device import (
    AttentionKey,
    CollectiveCurve,
    DecodeCurve,
    DeviceProfile,
    HeldOutError,
    LinearTable,
    MemoryCurve,
    MixedCurve,
    MoeCurve,
    MoeKey,
    PrefillCurve,
    Ragged,
    datasheet,
)
from kvsim.device.curves import MemoryOp
from kvsim.device.dtypes import compute_dtype
from kvsim.device.forms import MatmulForm

C = TypeVar("C")
A = TypeVar("A", DecodeCurve, PrefillCurve, MixedCurve)

Weighted = tuple[tuple[float, C], ...]

_KERNEL_FIELDS = tuple(name for name in AttentionKey.model_fields if name != "block_size")

NEAR = 2.0
"""octaves: neighbours within it are interpolated, farther ones give only the nearest key's ratio"""
NEIGHBOURS = 4
FLAT = Ragged(outer=(1.0,), inner=((1.0,),), ratio=((1.0,),))


@dataclass(frozen=True, slots=True)
class Blend(Generic[C]):
    """Curves whose answers are averaged with these weights."""

    curves: Weighted[C]
    origin: Origin


def _weigh(candidates: Iterable[tuple[float, C]], alike: Callable[[C], bool]) -> tuple[Weighted[C], How]:
    """Curves by distance → weights: inverse squares over the near and like ones, else the nearest."""
    ranked = sorted(candidates, key=lambda pair: pair[0])
    near = [pair for pair in ranked if pair[0] <= NEAR and alike(pair[1])][:NEIGHBOURS]
    if len(near) < 2:
        return ((1.0, ranked[0][1]),), "nearest"
    weights = [1.0 / max(distance, 1e-6) ** 2 for distance, _ in near]
    total = sum(weights)
    return tuple((w / total, curve) for w, (_, curve) in zip(weights, near, strict=True)), "interpolated"


def _octaves(a: float, b: float) -> float:
    return abs(math.log2(a / b))


def attention_distance(a: AttentionKey, b: AttentionKey) -> float:
    """Octaves between two attention kernels; a factor of 2 in KV heads counts as one, a change of dtype as six."""
    window = 0.0 if a.window == b.window else 1.0 + (_octaves(a.window, b.window) if a.window and b.window else 0.0)
    blocks = 0.0 if a.block_size == b.block_size else 0.05 if not (a.block_size and b.block_size) else 0.2
    return (_octaves(a.kv_heads, b.kv_heads) + 0.5 * _octaves(a.heads / a.kv_heads, b.heads / b.kv_heads)
            + 1.5 * _octaves(a.head_dim + a.value_dim, b.head_dim + b.value_dim)
            + window + blocks + (6.0 if a.kv_dtype != b.kv_dtype else 0.0))


def _same_kernel(a: AttentionKey, b: AttentionKey) -> bool:
    """Equal but for the page size, which hardly matters: pages are read as fast as contiguous rows."""
    return all(getattr(a, name) == getattr(b, name) for name in _KERNEL_FIELDS)


def attention_blend(curves: Sequence[A], key: AttentionKey, device: DeviceProfile,
                    form_error: HeldOutError) -> Blend[A] | None:
    """The curves that answer for `key`; None where the profile has none of that kernel at all."""
    usable = [(attention_distance(key, curve.key), curve) for curve in curves
              if curve.key.kernel == key.kernel and curve.key.latent == key.latent]
    if not usable:
        return None
    same = [pair for pair in usable if _same_kernel(pair[1].key, key)]
    if same:
        chosen: Weighted[A] = ((1.0, min(same, key=lambda pair: pair[0])[1]),)
        how: How = "exact"
    else:
        chosen, how = _weigh(usable, lambda curve: (curve.key.kv_dtype, curve.key.head_dim, curve.key.window)
                             == (key.kv_dtype, key.head_dim, key.window))
    source = chosen[0][1].source
    return Blend(chosen, origin(device.provenance.get(source), how, source, form_error))


def decode_blend(device: DeviceProfile, key: AttentionKey) -> Blend[DecodeCurve]:
    """Decode attention; the datasheet's form where nothing is known."""
    forms = datasheet.forms(device.facts)
    flat = DecodeCurve(key=key, form=forms.decode, table=FLAT, source="datasheet")
    return (attention_blend(device.curves.decode, key, device, forms.decode_error)
            or Blend(((1.0, flat),), origin(None, "form", "datasheet", forms.decode_error)))


def prefill_blend(device: DeviceProfile, key: AttentionKey) -> Blend[PrefillCurve]:
    """Prefill attention; the datasheet's form where nothing is known."""
    forms = datasheet.forms(device.facts)
    flat = PrefillCurve(key=key, form=forms.prefill, table=FLAT, source="datasheet")
    return (attention_blend(device.curves.prefill, key, device, forms.prefill_error)
            or Blend(((1.0, flat),), origin(None, "form", "datasheet", forms.prefill_error)))


def mixed_blend(device: DeviceProfile, key: AttentionKey) -> Blend[MixedCurve] | None:
    """Prefill and decode in one kernel; None where nobody measured it on this device."""
    return attention_blend(device.curves.mixed, key, device, datasheet.forms(device.facts).prefill_error)


@dataclass(frozen=True, slots=True)
class RatioRow:
    """A form and its ratios over one axis, the weights already applied."""

    form: MatmulForm
    axis: tuple[float, ...]
    ratio: tuple[float, ...]
    compute: str
    origin: Origin


_ALIKE = {"fp16": ("fp16", "bf16"), "bf16": ("bf16", "fp16"), "fp8_block": ("fp8_block", "fp8")}
"""formats whose tables stand in for each other"""


def linear_row(device: DeviceProfile, n: int, k: int, dtype: str) -> RatioRow:
    """Ratios of the linear layer (N, K): this very shape, bilinear in log N and log K between four corners or by
    inverse distance between scattered neighbours, the nearest shape, or the form alone. Of several tables the
    first that holds the very shape answers, else the one with the most shapes."""
    form, form_error = datasheet.forms(device.facts).matmul(dtype)
    compute = compute_dtype(dtype)
    dtypes = {table.dtype for table in device.curves.linear}
    name = next((d for d in _ALIKE.get(dtype, (dtype,)) if d in dtypes), None)
    if name is None:
        return RatioRow(form, (1.0,), (1.0,), compute, origin(None, "form", "datasheet", form_error))
    tables = [table for table in device.curves.linear if table.dtype == name]
    table = next((table for table in tables if (n, k) in table.shapes), max(tables, key=lambda t: len(t.shapes)))
    weights, how = _shape_weights(table, n, k)
    ratio = tuple(sum(w * table.ratio[i][j] for i, w in weights) for j in range(len(table.m)))
    if {name, dtype} == {"fp8", "fp8_block"}:
        how = "nearest"
    return RatioRow(table.form, table.m, ratio, compute,
                    origin(device.provenance.get(table.source), how, table.source, form_error))


def _shape_weights(table: LinearTable, n: int, k: int) -> tuple[list[tuple[int, float]], How]:
    rows = {shape: i for i, shape in enumerate(table.shapes)}
    if (n, k) in rows:
        return [(rows[n, k], 1.0)], "exact"
    n_low, n_high, n_at = _corners(sorted({shape[0] for shape in rows}), n)
    k_low, k_high, k_at = _corners(sorted({shape[1] for shape in rows}), k)
    square = [(n_low, k_low), (n_low, k_high), (n_high, k_low), (n_high, k_high)]
    if all(corner in rows for corner in square):
        parts = [(1 - n_at) * (1 - k_at), (1 - n_at) * k_at, n_at * (1 - k_at), n_at * k_at]
        how: How = "interpolated" if n_low <= n <= n_high and k_low <= k <= k_high else "nearest"
        return [(rows[corner], w) for corner, w in zip(square, parts, strict=True) if w > 0], how
    ranked = [(_octaves(n, shape[0]) + _octaves(k, shape[1]), i) for shape, i in rows.items()]
    chosen, how = _weigh(ranked, lambda _: True)
    return [(i, w) for w, i in chosen], how


def _corners(axis: list[int], x: int) -> tuple[int, int, float]:
    """(low, high, fraction in log space) of x on a sorted axis, clamped."""
    low = max((a for a in axis if a <= x), default=axis[0])
    high = min((a for a in axis if a >= x), default=axis[-1])
    return low, high, 0.0 if low == high else math.log(x / low) / math.log(high / low)


def moe_row(device: DeviceProfile, key: MoeKey, dtype: str) -> RatioRow:
    """Ratios of routed experts over m tokens."""
    compute = compute_dtype(dtype)
    usable: list[tuple[float, MoeCurve]] = [
        (_octaves(key.hidden, c.key.hidden) + _octaves(key.inter, c.key.inter) + _octaves(key.experts, c.key.experts)
         + _octaves(key.top_k, c.key.top_k), c)
        for c in device.curves.moe if c.dtype in _ALIKE.get(dtype, (dtype,))]
    forms = datasheet.forms(device.facts)
    if not usable:
        return RatioRow(forms.moe, (1.0,), (1.0,), compute, origin(None, "form", "datasheet", forms.moe_error))
    distance, nearest = min(usable, key=lambda pair: (pair[0], pair[1].dtype != dtype))
    how: How = "exact" if distance == 0 else "nearest"
    where = origin(device.provenance.get(nearest.source), how, nearest.source, forms.moe_error)
    return RatioRow(nearest.form, nearest.m, nearest.ratio, compute, where)


def memory_curve(device: DeviceProfile, op: MemoryOp, dtype: str) -> tuple[MemoryCurve, Origin]:
    """The curve of a kernel that only moves bytes: its own, another dtype's, or the form."""
    curves = sorted((c for c in device.curves.memory if c.op == op), key=lambda c: c.dtype != dtype)
    forms = datasheet.forms(device.facts)
    if not curves:
        form = forms.sample if op == "sample" else forms.memory
        flat = MemoryCurve(op=op, dtype=dtype, form=form, bytes=(1.0,), ratio=(1.0,), source="datasheet")
        return flat, origin(None, "form", "datasheet", forms.memory_error)
    curve = curves[0]
    how: How = "exact" if curve.dtype == dtype else "nearest"
    return curve, origin(device.provenance.get(curve.source), how, curve.source, forms.memory_error)


def collective_curve(device: DeviceProfile, gpus: int) -> tuple[CollectiveCurve, Origin]:
    """The all-reduce among `gpus` devices: its own curve, the nearest count's ratio, or the form."""
    curves = sorted(device.curves.collective, key=lambda c: _octaves(c.gpus, gpus))
    forms = datasheet.forms(device.facts)
    if not curves:
        flat = CollectiveCurve(gpus=gpus, form=forms.collective, bytes=(1.0,), ratio=(1.0,), source="datasheet")
        return flat, origin(None, "form", "datasheet", forms.collective_error)
    curve = curves[0]
    how: How = "exact" if curve.gpus == gpus else "nearest"
    return curve, origin(device.provenance.get(curve.source), how, curve.source, forms.collective_error)
