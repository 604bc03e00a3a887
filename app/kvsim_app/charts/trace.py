"""What traffic is like: lengths, arrivals, and how much of it repeats."""

from __future__ import annotations

import altair as alt
import numpy as np

from kvsim.report.charts.style import HEIGHT, SERIES, clock, log_axis, log_scale, palette, records
from kvsim.trace import Trace
from kvsim.units import NS_PER_S


def lengths(trace: Trace, bins: int = 48) -> alt.Chart:
    """Prompts and answers by length, on a logarithmic axis."""
    most = max(int(trace.prompt_tokens.max()), int(trace.output_tokens.max()), 2)
    edges = np.unique(np.geomspace(1, most + 1, bins + 1).round()).astype(float)
    kinds = {"prompt": trace.prompt_tokens, "answer": trace.output_tokens}
    low = np.tile(edges[:-1], 2)
    source = records(
        low=low,
        high=np.tile(edges[1:], 2),
        kind=np.repeat(list(kinds), len(edges) - 1),
        count=np.concatenate([np.histogram(tokens, edges)[0] for tokens in kinds.values()]),
    )
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_area(interpolate="step-after", opacity=0.55, line=True)
        .encode(
            x=alt.X("low:Q", scale=log_scale(edges), axis=log_axis("tokens", edges)),
            y=alt.Y("count:Q", stack=None, title="requests"),
            color=palette(list(kinds), "kind"),
            tooltip=[
                "kind:N",
                alt.Tooltip("low:Q", format=",.0f", title="from"),
                alt.Tooltip("high:Q", format=",.0f", title="to"),
                alt.Tooltip("count:Q", format=","),
            ],
        )
    )


def arrivals(trace: Trace, bins: int = 240) -> alt.Chart:
    """Requests a second over time."""
    times = trace.arrival_ns / NS_PER_S
    counts, edges = np.histogram(times, bins, range=(0.0, max(float(times.max()), 1.0)))
    source = records(t=edges[:-1], rate=counts / (edges[1] - edges[0]))
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_area(interpolate="step-after", color=SERIES[0], opacity=0.7)
        .encode(
            x=alt.X("t:Q", axis=clock("time", float(edges[-1])), scale=alt.Scale(nice=False)),
            y=alt.Y("rate:Q", title="requests a second"),
            tooltip=[alt.Tooltip("t:Q", format=".1f", title="s"), alt.Tooltip("rate:Q", format=".3~g")],
        )
    )


def prompts_and_answers(trace: Trace) -> alt.Chart:
    """Prompt length against answer length, as counts on a grid."""
    x, y = np.maximum(trace.prompt_tokens, 1), np.maximum(trace.output_tokens, 1)
    across, up = (np.geomspace(1, int(values.max()) + 1, 33) for values in (x, y))
    counts, _, _ = np.histogram2d(x, y, (across, up))
    i, j = np.nonzero(counts)
    wide, high = (np.concatenate([edges[k], edges[k + 1]]) for edges, k in ((across, i), (up, j)))
    source = records(a=across[i], a2=across[i + 1], b=up[j], b2=up[j + 1], count=counts[i, j].astype(int))
    return (
        alt.Chart(source, height=HEIGHT)
        .mark_rect()
        .encode(
            x=alt.X("a:Q", scale=log_scale(wide), axis=log_axis("prompt tokens", wide)),
            x2="a2:Q",
            y=alt.Y("b:Q", scale=log_scale(high), axis=log_axis("answer tokens", high)),
            y2="b2:Q",
            color=alt.Color(
                "count:Q",
                scale=alt.Scale(scheme="viridis", type="log"),
                legend=alt.Legend(title="requests", format="~s"),
            ),
            tooltip=[
                alt.Tooltip("count:Q", format=","),
                alt.Tooltip("a:Q", format=",.0f", title="prompt from"),
                alt.Tooltip("b:Q", format=",.0f", title="answer from"),
            ],
        )
    )
