"""What every page has: a title, its finding, how far to trust it, definitions, the data as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import altair as alt
import polars as pl
import streamlit as st

from kvsim.cost import Band
from kvsim.metrics import DEFINITIONS
from kvsim.report.palette import TIERS
from kvsim.report.palette import trust as trusted
from kvsim.result import Result
from kvsim.units import format_duration
from kvsim_app.session import Sources, selection, step_error

_RUN = "a real run"
_SHARES = (
    "Shares of this step's time. Measured: kernels timed on such a device; imported: published kernel measurements; "
    "datasheet: a formula with data-sheet numbers. A run names the worst of those that make a tenth of its mean step."
)
_BADGES = {
    _RUN: ("green", ":material/sensors:"),
    "measured": ("green", ":material/verified:"),
    "imported": ("blue", ":material/library_books:"),
    "datasheet": ("orange", ":material/warning:"),
}


def header(title: str, finding: str) -> None:
    """The page's name, and in one sentence what it shows."""
    st.subheader(title, anchor=False)
    st.markdown(f"#### {finding}")


def trust(
    runs: Mapping[str, Result] | None = None, tiers: Iterable[str] = (), step: tuple[Sources, Band] | None = None
) -> None:
    """How far to trust what is shown: the tiers that `runs` say (or `tiers`), or where the time of a `step` comes from;
    and its error interval, or a typical step's of the scenario."""
    said: dict[str, list[str]] = {tier: [] for tier in tiers}
    origin = {}
    for name, result in (runs or {}).items():
        where = result.run.get("provenance") or {}
        tier = _RUN if where.get("run") else str(where.get("tier"))
        said.setdefault(tier, []).append(name)
        origin[tier] = trusted(where, "Of unknown origin.")
    if step is not None:
        shares, band = step
        said = {tier: [f"{share:.0%}"] for tier, share in shares.items() if share >= 0.005}
        width = f"90 % interval of this step's time: {interval(band)}"
    elif runs is None or set(runs) & set(selection().policies):
        width = f"90 % interval of a step's time: {interval(step_error(selection().base)[1])}"
    else:
        width = "recorded runs: their intervals are their own"
    badges = []
    for tier, names in said.items():
        colour, icon = _BADGES.get(tier, ("gray", ":material/help:"))
        of = f" {', '.join(names)}" if len(said) > 1 and names else ""
        badges.append(f":{colour}-badge[{icon} {tier}{of}]")
    meaning = "  \n".join(origin.get(tier) or TIERS.get(tier, "Of unknown origin.") for tier in said)
    help = _SHARES if step is not None else meaning
    st.markdown(f"{' '.join(badges)} {_what()} · {width}", help=help)


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
    # Streamlit moves the first and the last label inward, which of rows and columns is away from what they name.
    st.altair_chart(chart.configure_axisBand(labelFlush=False), width="stretch", key=key)


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
