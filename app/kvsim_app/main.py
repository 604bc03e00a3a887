"""The app's frame: navigation, sidebar, and the page that was chosen. Streamlit runs this file top to bottom."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import altair as alt
import streamlit as st

from kvsim.errors import InputError
from kvsim_app import session
from kvsim_app.sidebar import sidebar

CHECK = "KVSIM_CHECK_CHARTS"  # environment variable under which charts are checked as they are drawn
HOME = "start"
# In a folder of another name than "pages", which Streamlit would serve by itself, past this file.
PAGES = {
    "": [(HOME, "Start", ":material/home:")],
    "Answer": [
        ("answer", "Answer", ":material/task_alt:"),
        ("load_curve", "Load curve", ":material/show_chart:"),
        ("pareto", "Pareto", ":material/scatter_plot:"),
    ],
    "Explore": [
        ("compare", "Compare", ":material/compare_arrows:"),
        ("anatomy", "Memory anatomy", ":material/stacked_bar_chart:"),
        ("memory_map", "Memory map", ":material/grid_on:"),
        ("trace_explorer", "Trace explorer", ":material/upload_file:"),
    ],
    "Inside": [
        ("timeline", "Timeline", ":material/view_timeline:"),
        ("operations", "Operations", ":material/monitoring:"),
        ("cost", "Cost and calibration", ":material/speed:"),
    ],
    "Foundations": [
        ("how_it_works", "How it works", ":material/school:"),
        ("calculator", "Calculator", ":material/calculate:"),
    ],
}


def main() -> None:
    # Altair checks every part of a chart against its schema, a fifth of a page's time: tests do that for all visitors.
    alt.utils.schemapi.DEBUG_MODE = CHECK in os.environ
    st.set_page_config(page_title="kvsim", page_icon=str(Path(__file__).with_name("icon.svg")), layout="wide")
    session.sync()
    groups = {
        group: [
            st.Page(
                f"views/{name}.py",
                title=title,
                icon=icon,
                default=name == HOME,
                url_path=name if name != HOME else "",
            )
            for name, title, icon in pages
        ]
        for group, pages in PAGES.items()
    }
    home = groups[""][0]
    # Streamlit serves its default page at "/" alone: a link by its name, like the others', is led there.
    named = st.Page(partial(st.switch_page, home), title=home.title, url_path=HOME, visibility="hidden")
    page = st.navigation(groups | {"": [home, named]}, expanded=True)
    sidebar()
    if complaint := st.session_state.pop("complaint", None):
        st.error(complaint, icon=":material/error:")
    try:
        page.run()
    except InputError as error:
        st.error(str(error), icon=":material/error:")


main()
