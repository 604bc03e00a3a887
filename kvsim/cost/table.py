"""Everything whose time depends on the number of tokens only: tabulated once, so that a step looks it up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvsim.cost.error import Origin, PartCost, part
from kvsim.cost.geometry import Experts, Geometry, Linear
from kvsim.cost.line import Floats
from kvsim.cost.lookup import RatioRow, collective_curve, linear_row, memory_curve, moe_row
from kvsim.device import CollectiveCurve, DeviceProfile, Facts, MemoryCurve
from kvsim.device.dtypes import element_bytes
from kvsim.device.forms import collective_ns, matmul_ns, memory_ns, moe_ns

Term = tuple[str, Floats, tuple[Origin, tuple[float, ...], Floats]]
"""(part, ns, (origin, axis of its curve, place on that axis))"""

BLOCK = 512
DENSE = 16_384
"""beyond it a value is computed on demand: a table of every prompt length would cost more than it saves"""


class TokenTable:
    """ns of a step's kernels that depend on m only (layers, experts, elementwise, append, all-reduce), and of the
    lm_head with sampling over the rows that sample."""

    def __init__(self, geometry: Geometry, device: DeviceProfile) -> None:
        self._geometry, self._device = geometry, device
        self._linear = [(op, linear_row(device, op.n, op.k, op.dtype)) for op in geometry.linear]
        self._experts = [(op, moe_row(device, op.key, op.dtype)) for op in geometry.experts]
        self._memory = [(op, *memory_curve(device, op.op, op.dtype)) for op in geometry.memory]
        self._reduce = collective_curve(device, geometry.gpus) if geometry.gpus > 1 else None
        self._head = linear_row(device, geometry.head.n, geometry.head.k, geometry.head.dtype)
        self._sample = memory_curve(device, "sample", "bf16")
        self._tokens: list[float] = [0.0]
        self._rows: list[float] = [0.0]
        self._far: dict[tuple[bool, int], float] = {}

    def tokens(self, m: int) -> float:
        """ns of all that runs over the m tokens of a step."""
        table = self._tokens
        return table[m] if m < len(table) else self._look_up(table, m, head=False)

    def rows(self, sampled: int) -> float:
        """ns of lm_head and sampling over `sampled` rows."""
        table = self._rows
        return table[sampled] if sampled < len(table) else self._look_up(table, sampled, head=True)

    def _look_up(self, table: list[float], m: int, head: bool) -> float:
        if m > DENSE:
            if (head, m) not in self._far:
                self._far[head, m] = float(self._total(np.array([float(m)]), head)[0])
            return self._far[head, m]
        while m >= len(table):  # blocks start at the same places whatever is asked first: the same bits in any order
            table.extend(self._total(np.arange(len(table), len(table) + BLOCK, dtype=np.float64), head).tolist())
        return table[m]

    def _total(self, m: Floats, head: bool) -> Floats:
        total = np.zeros(len(m))
        for _, ns, _ in self._head_terms(m) if head else self._token_terms(m):
            total = total + ns
        return total

    def _token_terms(self, m: Floats) -> Iterator[Term]:
        facts, geometry = self._device.facts, self._geometry
        for op, row in self._linear:
            ns = linear_ns(op, row, facts, m)
            yield "linear", ns, (row.origin, row.axis, m)
        for experts, row in self._experts:
            yield "experts", experts_ns(experts, row, facts, m), (row.origin, row.axis, m)
        for memory, curve, where in self._memory:
            bytes_ = m * memory.bytes_per_token
            ns = memory.times * memory_op_ns(curve, facts, bytes_)
            yield "append" if memory.op == "append" else "elementwise", ns, (where, curve.bytes, bytes_)
        if self._reduce is not None:
            reduce, where = self._reduce
            bytes_ = m * geometry.reduce_bytes_per_token
            ns = geometry.reductions * all_reduce_ns(reduce, facts, geometry.gpus, bytes_)
            yield "allreduce", ns, (where, reduce.bytes, bytes_)

    def _head_terms(self, rows: Floats) -> Iterator[Term]:
        facts, head = self._device.facts, self._head
        yield "lm_head", linear_ns(self._geometry.head, head, facts, rows), (head.origin, head.axis, rows)
        curve, where = self._sample
        bytes_ = rows * self._geometry.sample_bytes_per_row
        ns = memory_op_ns(curve, facts, bytes_)
        yield "sample", ns, (where, curve.bytes, bytes_)

    def parts(self, m: int, sampled: int) -> Iterator[tuple[str, PartCost]]:
        """Each kernel's cost with its origin."""
        terms = list(self._token_terms(np.array([float(m)]))) if m else []
        terms += list(self._head_terms(np.array([float(sampled)]))) if sampled else []
        for name, ns, (where, axis, place) in terms:
            beyond = where.how != "form" and not axis[0] <= float(place[0]) <= axis[-1]
            yield name, part(float(ns[0]), where, beyond)


def linear_ns(op: Linear, row: RatioRow, facts: Facts, m: Floats) -> Floats:
    """ns of `op.times` linear layers at each m."""
    ns: Floats = matmul_ns(row.form, facts, op.n, op.k, m, element_bytes(op.dtype), row.compute, np.maximum)
    return op.times * ns * np.interp(m, row.axis, row.ratio)


def experts_ns(experts: Experts, row: RatioRow, facts: Facts, m: Floats) -> Floats:
    """ns of `experts.times` layers of routed experts at each m."""
    ns: Floats = moe_ns(row.form, facts, experts.key, m, element_bytes(experts.dtype), row.compute, np.maximum)
    return experts.times * ns * np.interp(m, row.axis, row.ratio)


def memory_op_ns(curve: MemoryCurve, facts: Facts, bytes_: Floats) -> Floats:
    """ns of one kernel that moves each of `bytes_`."""
    ns: Floats = memory_ns(curve.form, facts.bandwidth, bytes_)
    return ns * np.interp(bytes_, curve.bytes, curve.ratio)


def all_reduce_ns(curve: CollectiveCurve, facts: Facts, gpus: int, bytes_: Floats) -> Floats:
    """ns of one all-reduce of each of `bytes_`."""
    ns: Floats = collective_ns(curve.form, facts, gpus, bytes_)
    return ns * np.interp(bytes_, curve.bytes, curve.ratio)
