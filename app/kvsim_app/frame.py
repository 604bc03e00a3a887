"""What every page has: a title, its finding, how far to trust it, definitions, the data as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import altair as alt
import polars as pl
import streamlit as st

from kvsim.cost import Band
from kvsim.metrics import DEFINITIONS
from kvsim.report.palette import TIERS
from kvsim.result import Result
from kvsim.units import format_duration
from kvsim_app.session import selection, step_error

_BADGES = {
    "measured": ("green", ":material/verified:"),
    "imported": ("blue", ":material/library_books:"),
    "datasheet": ("orange", ":material/warning:"),
}


def header(title: str, finding: str) -> None:
    """The page's name, and in one sentence what it shows."""
    st.subheader(title, anchor=False)
    st.markdown(f"#### {finding}")


def trust(
    runs: Mapping[str, Result] | None = None, tiers: Iterable[str] = (), step: tuple[str, Band] | None = None
) -> None:
    """Device tier and error interval of what is shown: of recorded runs what they say (or `tiers`), of a `step` its
    own, else of a typical step of the scenario."""
    scenario = selection().base
    said: dict[str, list[str]] = {tier: [] for tier in tiers}
    for name, result in (runs or {}).items():
        where = result.run.get("provenance") or {}
        said.setdefault(str(where.get("tier")), []).append(name)
    if runs is None or set(runs) & set(selection().policies):
        tier, band = step or step_error(scenario)
        said = said or {tier: []}
        width = f"90 % interval of {'this' if step else 'a'} step's time: {interval(band)}"
    else:
        width = "recorded runs: their intervals are their own"
    badges = []
    for tier, names in said.items():
        colour, icon = _BADGES.get(tier, ("gray", ":material/help:"))
        of = f" {', '.join(names)}" if len(said) > 1 and names else ""
        badges.append(f":{colour}-badge[{icon} {tier}{of}]")
    worst = next((tier for tier in ("datasheet", "imported", "measured") if tier in said), "")
    st.markdown(f"{' '.join(badges)} {_what()} · {width}", help=TIERS.get(worst, "Of unknown origin."))


def interval(band: Band) -> str:
    return f"−{1 - band.low:.0%} to +{band.high - 1:.0%}"


def _what() -> str:
    base = selection().base
    gpus = base.tp * base.pp * base.replicas
    return f"**{base.model}** on **{gpus} × {base.device}** · {base.trace}" + (
        f", {base.duration}" if base.duration else ""
    )


def definitions(*names: str) -> str:
    """Definitions for a `help`, as docs/metrics.md has them."""
    return "  \n".join(f"**{name}**: {DEFINITIONS[name]}" for name in names)


def show(chart: alt.Chart | alt.LayerChart | alt.VConcatChart, key: str, title: str = "", help: str = "") -> None:
    """A chart under its title; `help` stands beside it."""
    if title:
        st.markdown(f"**{title}**", help=help or None)
    st.altair_chart(chart, width="stretch", key=key)


def download(frame: pl.DataFrame | Callable[[], pl.DataFrame], name: str) -> None:
    """The data behind the page, or what makes it, and how to come back to it."""

    def write() -> bytes:  # when it is asked for
        return (frame if isinstance(frame, pl.DataFrame) else frame()).write_csv().encode()

    left, right = st.columns([1, 4], vertical_alignment="center")
    left.download_button(
        "CSV",
        write,
        f"kvsim-{name}.csv",
        "text/csv",
        key=f"csv-{name}",
        icon=":material/download:",
        width="stretch",
        on_click="ignore",
    )
    right.caption("The address of this page is its permalink: it holds the whole scenario.")


def duration(seconds: float | None) -> str:
    """A duration in few letters."""
    return format_duration(seconds)
