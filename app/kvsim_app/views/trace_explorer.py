"""Trace explorer: what traffic is like, bundled, made up or your own."""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st
from kvsim_app import frame
from kvsim_app.charts import trace as charts
from kvsim_app.selection import Selection
from kvsim_app.session import choose, selection, store
from kvsim_app.store import UPLOAD_MB

from kvsim.errors import InputError
from kvsim.trace import Trace, load
from kvsim.trace.presets import PRESETS
from kvsim.trace.stats import describe
from kvsim.units import format_duration


@st.cache_resource(show_spinner="Reading the trace …", max_entries=6)
def _read(path: str, changed: int) -> tuple[Trace, dict[str, Any]]:
    trace = load(path, untimed="at-once")
    return trace, describe(trace)


def finding(name: str, facts: dict[str, Any]) -> str:
    """Rate, lengths and reuse in a sentence."""
    if not facts["rows"]:
        return f"**{name}** holds no request."
    rate = (
        f"{facts['rate_per_s']:.3g} requests/s, {facts['peak_rate_1s']:.3g} in the busiest second"
        if facts["rate_per_s"]
        else "all requests at once"
    )
    reuse = facts["reusable_share"]
    again = (
        "it doesn't say which prompts begin alike"
        if reuse is None
        else (f"**{reuse:.0%}** of prompt tokens begin like an earlier prompt")
    )
    return (
        f"**{facts['rows']:,} requests**: {rate}; half of the prompts have over {facts['prompt']['p50']:,.0f} "
        f"tokens, half of the answers over {facts['output']['p50']:,.0f}; {again}."
    )


def page() -> None:
    place = st.container()
    file = st.file_uploader(
        "Your own trace",
        key="upload",
        max_upload_size=UPLOAD_MB,
        help="CSV or JSON lines of any format that `kvsim list trace-formats` names, gzip too. A plain CSV needs the "
        "columns arrival_s, prompt_tokens and output_tokens. It stays on this machine, in the results folder.",
    )
    if file is not None and st.session_state.get("uploaded") != file.file_id:
        try:
            st.session_state.explored = store().keep(file.name, file.getvalue())
            st.session_state.uploaded = file.file_id
        except InputError as error:
            st.error(f"This file was not taken. {error}", icon=":material/error:")
    options = ["sample", *(f"synth:{name}" for name in PRESETS), *store().uploads()]
    wanted = st.session_state.get("explored", selection().base.trace)
    name = st.selectbox("Traffic", options, options.index(wanted) if wanted in options else 0, key=f"explore-{wanted}")
    path = store().inside(name) if name.startswith("uploads/") else name
    trace, facts = _read(str(path), path.stat().st_mtime_ns if not isinstance(path, str) else 0)
    with place:
        frame.header("Trace explorer", finding(name, facts))
        st.markdown(
            ":gray-badge[:material/dataset: traffic] As read: nothing is predicted on this page."
            + "".join(f" {note}." for note in trace.notes)
        )
    if not facts["rows"]:
        return
    _numbers(facts)
    left, right = st.columns(2)
    with left:
        frame.show(charts.lengths(trace), "trace-lengths", "Lengths of prompts and answers")
    with right:
        frame.show(charts.prompts_and_answers(trace), "trace-both", "Prompt against answer")
    if facts["duration_s"]:
        frame.show(charts.arrivals(trace), "trace-arrivals", "Arrivals over time")
    if st.button("Simulate this traffic", key="simulate-traffic", type="primary", icon=":material/play_arrow:"):
        chosen = selection()
        choose(
            Selection(
                chosen.base.replace(trace=name, arrivals=None if facts["duration_s"] else "poisson:2"),
                chosen.policies or ("paged",),
            )
        )
        st.switch_page("views/compare.py")
    frame.download(
        pl.DataFrame(
            {
                "arrival_s": trace.arrival_ns / 1e9,
                "prompt_tokens": trace.prompt_tokens,
                "output_tokens": trace.output_tokens,
                "session": trace.session,
            }
        ),
        "trace",
    )


def _numbers(facts: dict[str, Any]) -> None:
    values = {
        "Requests": f"{facts['rows']:,}",
        "Duration": format_duration(facts["duration_s"]),
        "Prompt p99": f"{facts['prompt']['p99']:,.0f}",
        "Answer p99": f"{facts['output']['p99']:,.0f}",
        "Reusable": "unknown" if facts["reusable_share"] is None else f"{facts['reusable_share']:.1%}",
    }
    for column, (label, value) in zip(st.columns(len(values)), values.items(), strict=True):
        column.metric(label, value)
    for reason, count in facts["dropped"].items():
        st.caption(f"{count:,} rows dropped: {reason}")


page()
