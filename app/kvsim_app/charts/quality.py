"""What policies cost in answers: perplexity over that of the full cache, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from kvsim.report.charts.style import GREY, records, series
from kvsim_app.quality import Quality


def perplexity(rows: Sequence[Quality], names: Sequence[str]) -> alt.LayerChart:
    """A point and a 95 % interval for each row, coloured by its run (`names`: all runs, in the order of colours)."""
    places = [row.label if row.label == row.run else f"{row.run}: {row.label}" for row in rows]
    source = records(
        run=[row.run for row in rows],
        place=places,
        change=[row.change for row in rows],
        low=[row.low for row in rows],
        high=[row.high for row in rows],
        text=[row.text for row in rows],
        same=[row.same_token for row in rows],
        facts=[row.facts for row in rows],
        cache=[row.cache for row in rows],
    )
    low, high = min(0.0, *(row.low for row in rows)), max(0.001, *(row.high for row in rows))
    room = (high - low) * 0.08
    base = alt.Chart(source, height=30 * len(rows) + 70).encode(
        y=alt.Y("place:N", sort=places, title=None, axis=alt.Axis(labelLimit=240)),
        color=series(names).legend(None),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("text:N", title="perplexity"),
            alt.Tooltip("same:Q", format=".1%", title="same next token"),
            alt.Tooltip("facts:N", title="facts found"),
            alt.Tooltip("cache:Q", format=".0%", title="of the full cache"),
        ],
    )
    x = alt.X(
        "change:Q",
        scale=alt.Scale(domain=[low - room, high + room], nice=False),
        axis=alt.Axis(
            labelExpr="datum.value == 0 ? '0%' : format(datum.value, '+~%')",
            title="perplexity over the full cache's",
            tickCount=6,
        ),
    )
    none = alt.Chart(records(x=[0.0])).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x="x:Q")
    return alt.layer(
        none,
        base.mark_rule(strokeWidth=3, opacity=0.6).encode(x="low:Q", x2="high:Q"),
        base.mark_point(filled=True, size=90, opacity=1).encode(x=x),
    )
