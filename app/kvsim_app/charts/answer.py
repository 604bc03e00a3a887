"""The answer as bars: the rate that a replica holds under each policy, its interval, and the GPUs that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvsim.report.charts.style import GREY, number_axis, records, series


def held(rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> alt.LayerChart:
    """A bar a policy with its 90 % interval, which is capped at both ends and so no dash before the GPUs that stand
    behind it; policies that hold no rate say so.

    `policies`: in the order of their colours on the other pages."""
    names = [row["policy"] for row in rows]
    source = records(
        run=names,
        rate=[row["rate held"] or 0.0 for row in rows],
        low=[row["low"] or 0.0 for row in rows],
        high=[row["high"] or 0.0 for row in rows],
        label=[_label(row) for row in rows],
        limit=[row["limited by"] for row in rows],
    )
    most = max([row["high"] or 0.0 for row in rows] + [1e-9])
    base = alt.Chart(source, height=44 * len(rows) + 60).encode(
        y=alt.Y("run:N", sort=names, title=None, axis=alt.Axis(labelLimit=200)),
        tooltip=[alt.Tooltip("run:N", title="policy"), alt.Tooltip("rate:Q", format=".3~r"), alt.Tooltip("limit:N")],
    )
    scale = alt.Scale(domain=[0, most * 1.2], nice=False)
    x = alt.X("rate:Q", scale=scale, axis=number_axis("requests a second that one replica holds", tickCount=8))
    bars = base.mark_bar(height=26, opacity=0.9).encode(x=x, color=series(policies).legend(None))
    known = base.transform_filter("datum.high > 0")
    whisker = known.mark_rule(strokeWidth=2, color=GREY).encode(x="low:Q", x2="high:Q")
    caps = [known.mark_tick(thickness=2, size=14, color=GREY).encode(x=end) for end in ("low:Q", "high:Q")]
    text = base.mark_text(align="left", dx=12, fontWeight="bold", color=GREY).encode(x="high:Q", text="label:N")
    return alt.layer(bars, whisker, *caps, text)


def _label(row: dict[str, Any]) -> str:
    if not row["GPUs"]:
        return row["limited by"] or "no rate"
    return f"{row['GPUs']:,} GPU{'s' if row['GPUs'] != 1 else ''}"
