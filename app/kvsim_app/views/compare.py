"""Compare: 2 to 4 runs beside each other, predicted against measured too."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import streamlit as st
from kvsim_app import findings, frame, quality
from kvsim_app.charts.quality import perplexity
from kvsim_app.runs import selected

from kvsim.report.charts import latency
from kvsim.report.charts.latency import METRICS
from kvsim.report.columns import SHARES, SPEED, WORK
from kvsim.result import Result


def table(runs: Mapping[str, Result]) -> pl.DataFrame:
    """A row a metric, a column a run: numbers as a person writes them, a star at the best."""
    summaries = {name: result.summary for name, result in runs.items()}
    rows = []
    for column in (*SPEED, *SHARES, *WORK):
        if all(column.value(summary) is None for summary in summaries.values()):
            continue
        best = column.best(summaries.values())
        texts = {name: column.text(summary) for name, summary in summaries.items()}
        rows.append({"metric": column.heading, **{n: f"{t} ★" if t == best else t for n, t in texts.items()}})
    if changed := quality.of_runs(runs):
        for place, (metric, same) in enumerate((("perplexity*", "unchanged"), ("95 % interval*", "–"))):
            said = {n: " · ".join(row.said[place] for row in found) or "not measured" for n, found in changed.items()}
            rows.append({"metric": metric, **{name: said.get(name, same) for name in runs}})
    return pl.DataFrame(rows)


def differences(runs: Mapping[str, Result]) -> pl.DataFrame:
    """What the runs were asked for differently: a row a scenario field."""
    asked = {
        name: {
            **(r.run.get("scenario") or {}),
            **{f"cache: {k}": v for k, v in (r.run.get("policy") or {}).items()},
            **(r.run.get("provenance") or {}),
        }
        for name, r in runs.items()
    }
    keys = dict.fromkeys(key for said in asked.values() for key in said)
    rows = [
        {"field": key, **{name: _word(said.get(key)) for name, said in asked.items()}}
        for key in keys
        if len({_word(said.get(key)) for said in asked.values()}) > 1
    ]
    return pl.DataFrame(rows) if rows else pl.DataFrame({"field": []})


def _word(value: object) -> str:
    text = "–" if value is None else str(value)
    return "full" if text.startswith("Full(") else text


def page() -> None:
    runs = selected()
    frame.header("Compare", findings.compare(runs))
    frame.trust(runs)
    metric = (
        st.segmented_control(
            "Latency",
            list(METRICS),
            default="ttft",
            format_func=lambda m: METRICS[m],
            key="compare-metric",
            label_visibility="collapsed",
            required=True,
        )
        or "ttft"
    )
    chart = latency.cdf(runs, metric)
    if chart is not None:
        frame.show(
            chart,
            "compare-cdf",
            f"How long {METRICS[metric]} takes",
            frame.definitions(METRICS[metric]),
        )
    _intervals(runs, metric)
    _quality(runs)
    left, right = st.columns([3, 2])
    with left:
        st.markdown("**Every metric**", help=frame.definitions("hit share", "memory shares", "computed tokens"))
        found = table(runs)
        st.dataframe(found, hide_index=True, width="stretch", height=35 * (found.height + 1) + 3)
        frame.download(found, "compare")
    with right:
        if len(runs) > 1:
            _deltas(runs)
        st.markdown("**What differs**")
        st.dataframe(differences(runs), hide_index=True, width="stretch")


def _intervals(runs: Mapping[str, Result], metric: str) -> None:
    lines = []
    for name, result in runs.items():
        interval = result.run.get("interval") or {}
        for at in ("p50", "p99"):
            if span := interval.get(f"{metric}_{at}"):
                value = result.summary["latency_s"][metric][at]
                lines.append(
                    f"{name} {at} **{frame.duration(value)}** ({frame.duration(span[0])} to {frame.duration(span[1])})"
                )
    if lines:
        st.caption("90 % intervals: " + " · ".join(lines), help=frame.definitions("interval"))


def _quality(runs: Mapping[str, Result]) -> None:
    """What the policies cost in answers, beside what they give in time and memory."""
    changed = quality.of_runs(runs)
    rows = [row for found in changed.values() for row in found]
    if rows:
        frame.show(
            perplexity(rows, list(runs)),
            "compare-quality",
            "What it costs in answers",
            "How much less sure the model is of the right next token when its cache is quantized or cut. Policies that "
            "are not drawn keep the cache whole, and the model's answers with it.",
        )
    if changed:
        st.caption(f"\\* {quality.source(*quality.kinds(runs[name].run['policy'] for name in changed))}")


def _deltas(runs: Mapping[str, Result]) -> None:
    names = list(runs)
    before = st.selectbox("Relative to", names, key="compare-before")
    after = st.selectbox("Run", [name for name in names if name != before], index=len(names) - 2, key="compare-after")
    first, second = runs[before].summary, runs[after].summary
    metrics, ratios, better = [], [], []
    for column in (*SPEED, *WORK):
        a, b = column.value(first), column.value(second)
        if column.better and a and b and a > 0 and b > 0:
            metrics.append(column.heading)
            ratios.append(b / a)
            better.append((b - a) * column.better >= 0)
    if metrics:
        frame.show(latency.changes(metrics, ratios, better, before, after), "compare-changes")


page()
