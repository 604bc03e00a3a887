"""All runs of a sweep at once."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from kvsim.report.charts.style import HEIGHT, log_scale, number_axis, records, seconds_axis
from kvsim.report.palette import SERIES


def scatter(ttft: Sequence[float], rate: Sequence[float], said: Sequence[str]) -> alt.Chart:
    """Output tokens a second against TTFT p99 (seconds), a dot a run; `said`: what each run was asked for."""
    source = records(ttft=np.array(ttft, float), rate=np.array(rate, float), run=said)
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_point(filled=True, size=70, opacity=0.85, color=SERIES[0])
        .encode(
            x=alt.X("ttft:Q", scale=log_scale(ttft), axis=seconds_axis("TTFT p99", ttft)),
            y=alt.Y("rate:Q", axis=number_axis("output tokens/s"), scale=alt.Scale(zero=True)),
            tooltip=[
                "run:N",
                alt.Tooltip("ttft:Q", format=".4~g", title="TTFT p99, s"),
                alt.Tooltip("rate:Q", format=",.4~g", title="output tokens/s"),
            ],
        )
    )
