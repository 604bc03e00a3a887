"""Charts as inline SVG: text in, text out. Colours are CSS classes, so that one page serves light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from kvsim.report.axes import Scale, Tick

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area of a chart of `width` × `height` units, and its two scales."""

    width: int
    height: int
    x: Scale
    y: Scale

    @classmethod
    def make(
        cls,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        width: int = 520,
        height: int = 260,
        log_x: bool = False,
        left: int = 50,
    ) -> Frame:
        """A frame that shows x and y from low to high, with room for labels to the left and below."""
        return cls(width, height, Scale(*x, left, width - 16, log_x), Scale(*y, height - 30, 10))

    def draw(self, title: str, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], marks: Iterable[str]) -> str:
        """The whole chart: grid, labels and what stands in `marks`."""
        left, right, bottom, top = self.x.begin, self.x.end, self.y.begin, self.y.end
        parts = [f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(title)}">']
        for value, label in y_ticks:
            place = _n(float(self.y(value)))
            parts.append(f'<path class="grid" d="M{left:g} {place}H{right:g}"/>')
            parts.append(f'<text class="tick" x="{left - 8:g}" y="{place}" dy=".35em" text-anchor="end">{label}</text>')
        for value, label in x_ticks:
            place = _n(float(self.x(value)))
            parts.append(f'<path class="grid" d="M{place} {top:g}V{bottom:g}"/>')
            parts.append(f'<text class="tick" x="{place}" y="{bottom + 18:g}" text-anchor="middle">{label}</text>')
        parts += marks
        parts.append(f'<path class="axis" d="M{left:g} {bottom:g}H{right:g}"/></svg>')
        return "".join(parts)

    def line(self, x: Float, y: Float, style: str, title: str = "") -> str:
        """A polyline through (x, y)."""
        return f'<path class="line {style}" d="{_path(self.x(x), self.y(y))}">{_title(title)}</path>'

    def steps(self, edges: Float, y: Float, style: str, title: str = "") -> str:
        """A line that is level over each bin."""
        return self.line(np.repeat(edges, 2)[1:-1], np.repeat(y, 2), style, title)

    def stack(self, edges: Float, layers: Mapping[str, Float]) -> list[str]:
        """Areas on top of each other, level over each bin; a layer's name is its class."""
        x = self.x(np.repeat(edges, 2)[1:-1])
        below = np.zeros(len(edges) - 1)
        areas = []
        for name, values in layers.items():
            above = below + values
            if values.any():
                rim, floor = (self.y(np.repeat(side, 2)) for side in (above, below))
                outline = _path(np.concatenate([x, x[::-1]]), np.concatenate([rim, floor[::-1]]))
                areas.append(f'<path class="area {name}" d="{outline}Z">{_title(name)}</path>')
            below = above
        return areas

    def boxes(self, left: Float, right: Float, low: Float, high: Float, style: str) -> str:
        """Filled rectangles from (left, low) to (right, high), as one path."""
        x, y = self.x(left), self.y(high)
        across, down = self.x(right) - x, self.y(low) - y
        pieces = zip(x.tolist(), y.tolist(), across.tolist(), down.tolist(), strict=True)
        outline = "".join(f"M{_n(px)} {_n(py)}h{_n(w)}v{_n(h)}h{_n(-w)}z" for px, py, w, h in pieces)
        return f'<path class="area {style}" d="{outline}"/>'

    def dot(self, x: float, y: float, style: str, title: str) -> str:
        """A point with a tooltip."""
        return (
            f'<circle class="dot {style}" cx="{_n(float(self.x(x)))}" cy="{_n(float(self.y(y)))}" r="3.5">'
            f"{_title(title)}</circle>"
        )


def bar(parts: Mapping[str, float], titles: Mapping[str, str], width: int = 1080, height: int = 34) -> str:
    """One horizontal bar whose pieces add up to its whole; a piece's name is its class."""
    total = sum(parts.values()) or 1
    pieces, at = [], 0.0
    for name, size in parts.items():
        span = size / total * width
        if size > 0:
            pieces.append(
                f'<rect class="area {name}" x="{_n(at)}" width="{_n(span)}" height="{height}">'
                f"{_title(titles[name])}</rect>"
            )
        at += span
    label = escape(", ".join(titles[name] for name in parts))
    return f'<svg class="bar" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(pieces)}</svg>'


def _path(x: Float, y: Float) -> str:
    """SVG path data. Points on a straight level run are left out: most bins look like their neighbours."""
    points = np.round(np.column_stack([x, y]), 1)
    keep = np.ones(len(points), bool)
    if len(points) > 2:
        level = points[:, 1]
        keep[1:-1] = (level[1:-1] != level[:-2]) | (level[1:-1] != level[2:])
    return "M" + "L".join(f"{_n(px)} {_n(py)}" for px, py in points[keep])


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
