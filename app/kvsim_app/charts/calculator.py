"""Does it fit? Batch × context as a heat map."""

from __future__ import annotations

import altair as alt
import numpy as np

from kvsim.model import ModelSpec
from kvsim.report.charts.style import records
from kvsim.units import format_bytes

CONTEXTS = tuple(2**i for i in range(9, 18))
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def heat_map(model: ModelSpec, pool: int, dtype: str, tp: int, pp: int = 1) -> alt.LayerChart:
    """Share of one GPU's KV pool that a batch of equal requests takes; blank where it doesn't fit."""
    rows = [
        (batch, context, batch * model.kv_bytes_per_request(context, dtype, tp, pp))
        for batch in BATCHES
        for context in CONTEXTS
        if context <= max(model.max_model_len, CONTEXTS[0])
    ]
    batch, context, size = zip(*rows, strict=True)
    share = np.array(size, float) / pool if pool > 0 else np.full(len(size), np.inf)
    text = ["no" if s > 1 else f"{s:.0%}" if s >= 0.01 else "<1%" for s in share.tolist()]
    source = records(
        batch=batch,
        context=[_k(c) for c in context],
        share=np.minimum(share, 1.0),
        fits=[s <= 1 for s in share.tolist()],
        text=text,
        size=[format_bytes(s) for s in size],
    )
    order = [_k(c) for c in CONTEXTS]
    base = alt.Chart(source, height=360).encode(
        x=alt.X("context:O", sort=order, axis=alt.Axis(title="context of each request, tokens", labelAngle=0)),
        y=alt.Y("batch:O", sort="descending", axis=alt.Axis(title="requests at once")),
        tooltip=["batch:O", "context:O", "size:N", alt.Tooltip("text:N", title="of the pool")],
    )
    fits = (
        base.transform_filter("datum.fits")
        .mark_rect(cornerRadius=3)
        .encode(
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(scheme="viridis", domain=[0, 1]),
                legend=alt.Legend(title="of the pool", format="%", orient="right"),
            )
        )
    )
    no = base.transform_filter("!datum.fits").mark_rect(cornerRadius=3, color="#8A8F98", opacity=0.15)
    dark = (
        base.transform_filter("datum.fits")
        .mark_text(fontSize=12)
        .encode(text="text:N", color=alt.condition("datum.share > 0.55", alt.value("#111111"), alt.value("#FFFFFF")))
    )
    grey = base.transform_filter("!datum.fits").mark_text(fontSize=11, color="#8A8F98").encode(text="text:N")
    return alt.layer(no, fits, dark, grey)


def _k(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
