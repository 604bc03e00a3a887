"""Small SVG plots on logarithmic axes, as text. Colours are the page's CSS variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from kvsim.cost.line import Floats

COLOURS = 8
"""--c0 … --c7 of the page"""


@dataclass(frozen=True, slots=True)
class Points:
    """A cloud."""

    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot's area in pixels and its ranges in data; x is logarithmic, y is if `log_y`."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    log_y: bool = True
    left: float = 52
    bottom: float = 30
    top: float = 10
    right: float = 12

    def px(self, value: float) -> float:
        """x in pixels"""
        low, high = map(math.log, self.x)
        return self.left + (math.log(value) - low) / (high - low) * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        """y in pixels"""
        scale: Callable[[float], float] = math.log if self.log_y else float
        low, high = map(scale, self.y)
        return self.height - self.bottom - (scale(value) - low) / (high - low) * (self.height - self.bottom - self.top)

    def svg(self, inside: Iterable[str], x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[tuple[float, str]],
            label: str) -> str:
        """The plot with its grid and tick labels."""
        floor, wall = self.height - self.bottom, self.width - self.right
        parts = [f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(label)}">']
        for value, text in y_ticks:
            y = self.py(value)
            parts.append(f'<path class="grid" d="M{self.left:g} {y:.1f}H{wall:g}"/>'
                         f'<text x="{self.left - 6:g}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        for value, text in x_ticks:
            x = self.px(value)
            parts.append(f'<path class="grid" d="M{x:.1f} {self.top:g}V{floor:g}"/>'
                         f'<text x="{x:.1f}" y="{floor + 17:g}" text-anchor="middle">{escape(text)}</text>')
        return "".join([*parts, *inside, "</svg>"])


def decades(low: float, high: float, step: int = 1) -> list[float]:
    """Powers of ten in a range."""
    return [10.0**e for e in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1, step)]


def short(value: float) -> str:
    """`65536` → `66k`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _limits(values: Iterable[float], pad: float = 1.3) -> tuple[float, float]:
    found = [v for v in values if v > 0]
    return min(found) / pad, max(found) * pad


def _dots(frame: Frame, points: Points, style: str, radius: float = 2.0) -> str:
    low_x, high_x = frame.x
    low_y, high_y = frame.y
    marks = "".join(f"M{frame.px(x):.1f} {frame.py(y):.1f}h0" for x, y in zip(points.x, points.y, strict=True)
                    if low_x <= x <= high_x and low_y <= y <= high_y)
    return f'<path d="{marks}" fill="none" stroke-linecap="round" stroke-width="{2 * radius:g}" {style}/>'


def roofline(series: dict[str, Points], bandwidth: float, peaks: dict[str, float]) -> str:
    """FLOP/s over FLOP per byte, the roofs of a device above them."""
    xs = [x for points in series.values() for x in points.x] or [1.0]
    x = _limits([*xs, 2 * max(peaks.values()) / bandwidth])
    y = (1e9, 2 * max(peaks.values()))
    frame = Frame(1040, 430, x, y, left=62, right=16, bottom=34)
    inside = []
    for i, (name, points) in enumerate(series.items()):
        colour = f"var(--c{i % COLOURS})"
        inside.append(_dots(frame, points, f'stroke="{colour}" opacity="0.45"'))
        inside.append(f'<circle cx="{frame.left + 16:g}" cy="{frame.top + 14 + 17 * i:g}" r="4.5" fill="{colour}"/>'
                      f'<text x="{frame.left + 26:g}" y="{frame.top + 18 + 17 * i:g}">{escape(name)}</text>')
    for name, peak in peaks.items():
        ridge, start = peak / bandwidth, max(x[0], y[0] / bandwidth)
        inside.append(f'<path class="edge" d="M{frame.px(start):.1f} {frame.py(start * bandwidth):.1f}'
                      f'L{frame.px(ridge):.1f} {frame.py(peak):.1f}H{frame.px(x[1]):.1f}"/>'
                      f'<text x="{frame.px(x[1]) - 4:.1f}" y="{frame.py(peak) - 5:.1f}" text-anchor="end">{name} '
                      f'{short(peak)}FLOP/s</text>')
    ticks = [(v, short(v)) for v in decades(*x)]
    unit = f'<text x="{frame.width - 16:g}" y="{frame.height - 3:g}" text-anchor="end">FLOP per byte</text>'
    return frame.svg([*inside, unit], ticks, [(v, short(v)) for v in decades(*y)], "roofline")


def scatter(measured: Sequence[float], predicted: Sequence[float]) -> str:
    """Predicted over measured ns, drawn in µs, with the line where they agree."""
    xs, ys = [v / 1e3 for v in measured], [v / 1e3 for v in predicted]
    limits = _limits([*xs, *ys])
    frame = Frame(340, 250, limits, limits)
    line = f'<path class="unity" d="M{frame.px(limits[0]):.1f} {frame.py(limits[0]):.1f}L{frame.px(limits[1]):.1f} ' \
           f'{frame.py(limits[1]):.1f}"/>'
    ticks = [(v, short(v)) for v in decades(*limits)]
    return frame.svg([line, _dots(frame, Points(xs, ys), 'stroke="var(--accent)" opacity="0.45"')], ticks, ticks,
                     "predicted over measured")


def race(series: dict[str, Sequence[float]], mark: float, note: str) -> str:
    """Seconds over 1, 2, 3, … tokens, a line a series, and a vertical line at `mark` that says `note`."""
    longest = max(map(len, series.values()))
    every = [y for ys in series.values() for y in ys]
    frame = Frame(1040, 380, (1, 1.1 * longest), _limits(every), left=62, right=16, bottom=34)
    inside = [f'<path class="unity" d="M{frame.px(mark):.1f} {frame.top:g}V{frame.height - frame.bottom:g}"/>'
              f'<text x="{frame.px(mark) + 5:.1f}" y="{frame.height - frame.bottom - 8:g}">{escape(note)}</text>']
    for i, (name, ys) in enumerate(series.items()):
        line = "L".join(f"{frame.px(n):.1f} {frame.py(y):.1f}" for n, y in enumerate(ys, 1))
        inside.append(f'<path d="M{line}" fill="none" stroke="var(--c{i})" stroke-width="2.2"/>'
                      f'<circle cx="{frame.left + 16:g}" cy="{frame.top + 14 + 17 * i:g}" r="4.5" fill="var(--c{i})"/>'
                      f'<text x="{frame.left + 26:g}" y="{frame.top + 18 + 17 * i:g}">{escape(name)}</text>')
    unit = f'<text x="{frame.width - 16:g}" y="{frame.height - 3:g}" text-anchor="end">tokens generated</text>'
    ticks = [(2.0**e, f"{2**e:,}") for e in range(int(math.log2(longest)) + 1)]
    seconds = [(v, f"{v:g} s") for v in decades(*frame.y)]
    return frame.svg([*inside, unit], ticks, seconds, "generation time over tokens")


def residuals(x: Floats, error: Floats) -> str:
    """Signed relative error over an axis: the median and the band of 90 % in bins of an octave."""
    x = np.maximum(x, 0.5)  # zero has no place on a logarithmic axis: it is drawn at a half
    octave = np.floor(np.log2(x) + 1e-9)
    bins = [(2.0**at, np.percentile(error[octave == at], [5, 50, 95])) for at in np.unique(octave)]
    limits = _limits([at for at, _ in bins])
    reach = max(0.1, float(np.ceil(10 * max(max(abs(q[0]), abs(q[2])) for _, q in bins)) / 10))
    frame = Frame(340, 250, limits, (-reach, reach), log_y=False)
    upper = [f"{frame.px(at):.1f} {frame.py(q[2]):.1f}" for at, q in bins]
    lower = [f"{frame.px(at):.1f} {frame.py(q[0]):.1f}" for at, q in reversed(bins)]
    middle = "L".join(f"{frame.px(at):.1f} {frame.py(q[1]):.1f}" for at, q in bins)
    inside = [f'<path class="unity" d="M{frame.left:g} {frame.py(0):.1f}H{frame.width - frame.right:g}"/>',
              f'<path class="band" d="M{"L".join([*upper, *lower])}Z"/>', f'<path class="mid" d="M{middle}"/>']
    ticks = [(v, short(v)) for v in decades(*limits)]
    steps = [(s * reach, f"{100 * s * reach:+.0f} %") for s in (-1, -0.5, 0, 0.5, 1)]
    return frame.svg(inside, ticks, steps, "error over an axis")
