"""The charts of a profile's report: pure functions → Altair, with the reports' colours, scales and axes.

Clouds are drawn as squares without an outline, which a page holds as one path (kvsim/report/svg.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from kvsim.cost.line import Floats
from kvsim.report.charts.style import (
    GREY,
    SERIES,
    log_axis,
    log_scale,
    palette,
    records,
    seconds_axis,
)

DOT = {"thickness": 5, "size": 5, "opacity": 0.7}
DASHED = {"color": GREY, "strokeDash": [4, 3]}


@dataclass(frozen=True, slots=True)
class Points:
    """A cloud."""

    x: Sequence[float]
    y: Sequence[float]


def roofline(clouds: Mapping[str, Points], bandwidth: float, peaks: Mapping[str, float]) -> alt.LayerChart:
    """FLOP/s over FLOP a byte, the roofs of a device (bytes/s, FLOP/s by dtype) above them."""
    source = records(
        x=np.array([x for cloud in clouds.values() for x in cloud.x], float),
        y=np.array([y for cloud in clouds.values() for y in cloud.y], float),
        part=[name for name, cloud in clouds.items() for _ in cloud.x],
    )
    wide = [*source["x"], *(peak / bandwidth * side for peak in peaks.values() for side in (0.1, 4))]
    high = [*source["y"], *peaks.values(), min(wide) * bandwidth]
    left, right = min(wide), max(wide)
    roofs = records(
        x=[x for peak in peaks.values() for x in (left, peak / bandwidth, right)],
        y=[y for peak in peaks.values() for y in (left * bandwidth, peak, peak)],
        roof=[name for name in peaks for _ in range(3)],
    )
    ends = records(x=[right] * len(peaks), y=list(peaks.values()), said=[f"{name} peak" for name in peaks])
    x = alt.X("x:Q", scale=log_scale(wide), axis=log_axis("FLOP a byte", wide))
    y = alt.Y("y:Q", scale=log_scale(high), axis=log_axis("FLOP/s", high))
    dots = alt.Chart(source).mark_tick(**DOT).encode(x=x, y=y, color=palette(list(clouds), "part"))
    lines = alt.Chart(roofs).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y, detail="roof:N")
    names = alt.Chart(ends).mark_text(align="right", dy=-8, color=GREY).encode(x=x, y=y, text="said:N")
    return alt.layer(dots, lines, names)


def scatter(measured: Sequence[float], predicted: Sequence[float]) -> alt.LayerChart:
    """Predicted over measured ns, with the line where they agree."""
    seconds = np.array([measured, predicted], float) / 1e9
    ends = [seconds.min(), seconds.max()]
    x = alt.X("x:Q", scale=log_scale(ends), axis=seconds_axis("measured", ends))
    y = alt.Y("y:Q", scale=log_scale(ends), axis=seconds_axis("predicted", ends))
    dots = alt.Chart(records(x=seconds[0], y=seconds[1])).mark_tick(**DOT, color=SERIES[0]).encode(x=x, y=y)
    return alt.layer(alt.Chart(records(x=ends, y=ends)).mark_line(**DASHED).encode(x=x, y=y), dots)


def residuals(at: Floats, error: Floats, axis: str) -> alt.LayerChart:
    """Signed relative error over an axis: the median and the band of 90 % in bins of an octave."""
    at = np.maximum(at, 0.5)  # zero has no place on a logarithmic axis: it is drawn at a half
    octave = np.floor(np.log2(at) + 1e-9)
    bins = np.unique(octave)
    low, median, high = np.array([np.percentile(error[octave == one], [5, 50, 95]) for one in bins]).T
    source = records(x=2.0**bins, low=low, median=median, high=high)
    reach = max(0.1, float(np.ceil(10 * np.abs([low, high]).max()) / 10))
    x = alt.X("x:Q", scale=log_scale(source["x"]), axis=log_axis(axis, source["x"]))
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    label = "datum.value == 0 ? '0%' : format(datum.value, '+.0%')"
    ticks = np.linspace(-reach, reach, 5).tolist()
    percent = alt.Axis(title="predicted ÷ measured − 1", labelExpr=label, values=ticks)
    base = alt.Chart(source).encode(x=x)
    band = base.mark_area(color=SERIES[0], opacity=0.2).encode(y=alt.Y("low:Q", scale=scale, axis=percent), y2="high:Q")
    middle = base.mark_line(color=SERIES[0], strokeWidth=2).encode(y="median:Q")
    return alt.layer(band, middle, alt.Chart(records(y=[0.0])).mark_rule(**DASHED).encode(y="y:Q"))


def race(series: Mapping[str, Sequence[float]], mark: float, note: str) -> alt.LayerChart:
    """Seconds over 1, 2, 3, … tokens, a line a series, and a vertical line at `mark` that says `note`."""
    source = records(
        tokens=[float(n) for times in series.values() for n in range(1, len(times) + 1)],
        seconds=np.array([time for times in series.values() for time in times], float),
        part=[name for name, times in series.items() for _ in times],
    )
    x = alt.X("tokens:Q", scale=log_scale(source["tokens"]), axis=log_axis("tokens generated", source["tokens"]))
    y = alt.Y("seconds:Q", scale=log_scale(source["seconds"]), axis=seconds_axis("time", source["seconds"]))
    lines = alt.Chart(source).mark_line(strokeWidth=2).encode(x=x, y=y, color=palette(list(series), "part"))
    at = alt.Chart(records(tokens=[mark], seconds=[float(source["seconds"].min())], said=[note]))
    rule = at.mark_rule(**DASHED).encode(x=x)
    return alt.layer(lines, rule, at.mark_text(align="left", dx=6, color=GREY).encode(x=x, y=y, text="said:N"))
