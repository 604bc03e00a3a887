"""The answer as bars: GPUs that each policy needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from kvsim_app.charts.style import SERIES, records


def gpus_needed(rows: Sequence[dict[str, Any]]) -> alt.LayerChart:
    """A bar a policy, its number at the end; policies that can't meet the objectives say so."""
    names = [row["policy"] for row in rows]
    source = records(
        policy=names,
        gpus=[row["GPUs"] or 0 for row in rows],
        label=[f"{row['GPUs']:,}" if row["GPUs"] else "meets the objectives at no rate tried" for row in rows],
        limit=[row["limited by"] for row in rows],
    )
    base = alt.Chart(source, height=40 * len(rows) + 70).encode(
        y=alt.Y("policy:N", sort=names, title=None, axis=alt.Axis(labelLimit=200)),
        x=alt.X("gpus:Q", axis=alt.Axis(title="GPUs", format="~g", tickMinStep=1)),
        tooltip=["policy:N", "limit:N"],
    )
    return base.mark_bar(height=24, color=SERIES[0], opacity=0.9) + base.mark_text(
        align="left", dx=6, fontWeight="bold", color="#8A8F98"
    ).encode(text="label:N")
