"""Device work of cache policies themselves: eviction scores, and bytes gathered or copied."""

from __future__ import annotations

from kvsim.cost.error import PartCost, part
from kvsim.cost.geometry import Geometry
from kvsim.cost.line import interpolate
from kvsim.cost.lookup import memory_curve
from kvsim.device import DeviceProfile
from kvsim.device.forms import memory_ns


class PolicyWork:
    """ns of scoring `scored` cached tokens in every layer and of moving `moved` bytes."""

    def __init__(self, geometry: Geometry, device: DeviceProfile) -> None:
        self._layers = sum(group.layers for group in geometry.attention)
        self._score_bytes = geometry.score_bytes_per_token
        self._bandwidth = device.facts.bandwidth
        self._score = memory_curve(device, "score", geometry.attention[0].decode.kv_dtype)
        self._copy = memory_curve(device, "copy", "bf16")

    def ns(self, scored: int, moved: int) -> float:
        return self._score_ns(scored) + self._copy_ns(moved)

    def _score_ns(self, scored: int) -> float:
        if not scored:
            return 0.0
        curve, bytes_ = self._score[0], scored * self._score_bytes / self._layers
        ratio = interpolate(curve.bytes, curve.ratio, bytes_)
        return float(self._layers * memory_ns(curve.form, self._bandwidth, bytes_) * ratio)

    def _copy_ns(self, moved: int) -> float:
        if not moved:
            return 0.0
        curve, bytes_ = self._copy[0], 2 * moved
        return float(memory_ns(curve.form, self._bandwidth, bytes_) * interpolate(curve.bytes, curve.ratio, bytes_))

    def parts(self, scored: int, moved: int) -> dict[str, list[PartCost]]:
        """Both terms with their origin, those that are not zero."""
        terms = {"score": (self._score_ns(scored), self._score[1]), "copy": (self._copy_ns(moved), self._copy[1])}
        return {name: [part(ns, where)] for name, (ns, where) in terms.items() if ns}
