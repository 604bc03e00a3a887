"""Attention of one layer group: decode over a batch, prefill over chunks, and both in one kernel."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate

import numpy as np

from kvsim.cost.error import UNFUSED, PartCost, part
from kvsim.cost.geometry import Attention
from kvsim.cost.line import Floats, Line, between, ragged_at
from kvsim.cost.lookup import decode_blend, mixed_blend, prefill_blend
from kvsim.cost.prefill import Chunks, PrefillRow, extent
from kvsim.device import DeviceProfile, MixedCurve, Ragged, SkewTable
from kvsim.device.forms import decode_coefficients


class DecodeRow:
    """Decode attention of a group for a fixed number of sequences: ns over the tokens they attend together."""

    __slots__ = ("_knots", "_segments", "line", "n", "skew", "skew_mixed")

    def __init__(self, n: int, line: Line, skew: Line | None, skew_mixed: Line | None) -> None:
        self.n, self.line, self.skew, self.skew_mixed = n, line, skew, skew_mixed
        self._knots, self._segments = line.knots, line.segments

    def at(self, attended: int, longest: int) -> float:
        """ns of all layers of the group, `attended` tokens in all and `longest` by one sequence."""
        origin, base, slope = self._segments[bisect_right(self._knots, attended)]
        mean = base + slope * (attended - origin)
        if self.skew is None:
            return mean
        reach = longest * self.n
        return mean + self.skew.at(reach / attended) * (self.line.at(reach) - mean)

    def run(self, attended: int, growing: int, longest: int, grows: bool, k: int) -> list[float]:
        """`at` for k consecutive steps, in plain Python."""
        if self.skew is not None:
            return [self.at(attended + j * growing, longest + j if grows else longest) for j in range(k)]
        knots, last = self._knots, attended + growing * (k - 1)
        first = bisect_right(knots, attended)
        if first != bisect_right(knots, last, first):
            return [self.line.at(attended + j * growing) for j in range(k)]
        origin, base, slope = self._segments[first]
        if not growing:
            return [base + slope * (attended - origin)] * k
        return [base + slope * (total - origin) for total in range(attended, last + 1, growing)]

    def over(self, attended: int, growing: int, longest: int, grows: bool, ahead: Floats) -> Floats:
        """`at` for consecutive steps, `ahead` = 0, 1, 2, …, in NumPy: the same numbers to the last bit."""
        steps = len(ahead) - 1
        totals = attended + growing * ahead
        mean = self.line.over(totals, attended, attended + growing * steps)
        if self.skew is None:
            return mean
        reach, last = longest * self.n, (longest + steps * grows) * self.n
        reaches = (longest + ahead) * self.n if grows else np.full(len(ahead), float(reach))
        skews = reaches / totals
        return mean + self.skew.over(skews, skews[0], skews[-1]) * (self.line.over(reaches, reach, last) - mean)


class GroupAttention:
    """All attention kernels of one layer group on one device."""

    def __init__(self, group: Attention, device: DeviceProfile) -> None:
        self.group, self.facts = group, device.facts
        self.decode = decode_blend(device, group.decode)
        self.prefill = prefill_blend(device, group.prefill)
        self.mixed = mixed_blend(device, group.decode)
        self._prefill_rows = [
            (weight, PrefillRow(curve, group.prefill, device.facts)) for weight, curve in self.prefill.curves
        ]
        self._rows: dict[int, DecodeRow] = {}

    def row(self, n: int) -> DecodeRow:
        """The row for n sequences, made on first use."""
        row = self._rows.get(n)
        if row is None:
            row = self._rows[n] = self._make_row(n)
        return row

    def _make_row(self, n: int) -> DecodeRow:
        knots = sorted({knot for _, curve in self.decode.curves for knot in _inner_knots(curve.table, n)})
        times = [0.0] * len(knots)
        below = above = 0.0
        for weight, curve in self.decode.curves:
            fixed, per_token = decode_coefficients(curve.form, self.group.decode, self.facts, n)
            ratio = [ragged_at(curve.table, n, knot) for knot in knots]
            times = [time + weight * (fixed + per_token * (n * knot)) * r
                     for time, knot, r in zip(times, knots, ratio, strict=True)]
            below += weight * per_token * ratio[0]
            above += weight * per_token * ratio[-1]
        layers = self.group.layers
        rising = accumulate(times, max)  # a longer context never takes less time: a dip is noise
        line = Line([n * knot for knot in knots], [time * layers for time in rising], below * layers, above * layers)
        first = self.decode.curves[0][1]
        return DecodeRow(n, line, _alpha(first.skew, n), _alpha(first.skew_mixed, n))

    def prefill_ns(self, chunks: Chunks) -> float:
        """ns of the prefill attention of all chunks, all layers of the group."""
        tokens, attended = extent(self.group.prefill, chunks)
        total = 0.0
        for weight, row in self._prefill_rows:
            total += weight * row.ns(chunks, tokens, attended)
        return total * self.group.layers

    def fused_ns(self, chunks: Chunks, n: int, attended: int, longest: int) -> tuple[float, float]:
        """(prefill ns, decode ns) of a step that holds both, all layers: each kernel's own time, times what running
        them as one costs where a table says so."""
        row = self.row(n)
        prefill = self.prefill_ns(chunks)
        decode = row.line.at(attended)
        if self.mixed is None and row.skew_mixed is None:
            return prefill, decode
        factor = self._fusion(chunks, n, attended / n)
        if row.skew_mixed is not None and longest * n > attended:
            reach = longest * n
            mean = (prefill + decode) * factor
            far = (prefill + row.line.at(reach)) * self._fusion(chunks, n, longest)
            skewed = mean + row.skew_mixed.at(reach / attended) * (far - mean)
            factor *= skewed / mean
        return prefill * factor, decode * factor

    def _fusion(self, chunks: Chunks, n: int, mean: float) -> float:
        if self.mixed is None:
            return 1.0
        tokens = sum(chunk for chunk, _ in chunks)
        context = sum(chunk * before for chunk, before in chunks) / tokens
        return sum(weight * mixed_at(curve, tokens, context, n, mean) for weight, curve in self.mixed.curves)

    def decode_part(self, n: int, attended: int, ns: float, fused: bool) -> PartCost:
        """`ns` of decode attention with its origin; `fused`: prefill chunks ran beside it."""
        where = self.decode.origin
        if fused and self.mixed is None:
            where = replace(where, median=max(where.median, UNFUSED.median), p95=max(where.p95, UNFUSED.p95))
        elif fused and self.mixed is not None:
            where = self.mixed.origin
        return part(ns, where, _outside(self.decode.curves[0][1].table, n, attended / n) and where.how != "form")

    def prefill_part(self, chunks: Chunks, ns: float) -> PartCost:
        """`ns` of prefill attention with its origin."""
        tokens, attended = extent(self.group.prefill, chunks)
        outside = _outside(self.prefill.curves[0][1].table, tokens, attended)
        return part(ns, self.prefill.origin, outside and self.prefill.origin.how != "form")


def _inner_knots(table: Ragged, outer: float) -> tuple[float, ...]:
    i, j, _ = between(table.outer, outer)
    return table.inner[i] if i == j else table.inner[i] + table.inner[j]


def _outside(table: Ragged, outer: float, inner: float) -> bool:
    """Whether a point lies beyond the measured grid."""
    if not table.outer[0] <= outer <= table.outer[-1]:
        return True
    i, j, _ = between(table.outer, outer)
    return not min(table.inner[i][0], table.inner[j][0]) <= inner <= max(table.inner[i][-1], table.inner[j][-1])


def _alpha(table: SkewTable | None, n: int) -> Line | None:
    """alpha over longest ÷ mean for n sequences; none where one sequence is the mean."""
    if table is None or n < 2:
        return None
    i, j, f = between(table.sequences, n)
    return Line(table.skew, [a + f * (b - a) for a, b in zip(table.alpha[i], table.alpha[j], strict=True)])


def mixed_at(curve: MixedCurve, tokens: float, context: float, sequences: float, attended: float) -> float:
    """The fused kernel's ratio at one point: along the last axis first, then outwards."""
    a, b, x = between(curve.tokens, tokens)
    return _lerp(_plane_at(curve, a, context, sequences, attended),
                 _plane_at(curve, b, context, sequences, attended) if b != a else None, x)


def _plane_at(curve: MixedCurve, a: int, context: float, sequences: float, attended: float) -> float:
    plane = curve.ratio[a]
    i, j, x = between(curve.context, context)
    k, m, y = between(curve.sequences, sequences)
    d = bisect_right(curve.attended, attended)
    p, q = max(d - 1, 0), min(d, len(curve.attended) - 1)
    z = 0.0 if p == q else (attended - curve.attended[p]) / (curve.attended[q] - curve.attended[p])

    def along(row: tuple[float, ...]) -> float:
        return row[p] + z * (row[q] - row[p])

    low = _lerp(along(plane[i][k]), along(plane[i][m]) if m != k else None, y)
    if i == j:
        return low
    return _lerp(low, _lerp(along(plane[j][k]), along(plane[j][m]) if m != k else None, y), x)


def _lerp(low: float, high: float | None, f: float) -> float:
    return low if high is None else low + f * (high - low)
