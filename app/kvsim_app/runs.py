"""The Results a page shows: simulated where they are not kept yet, with progress and a way to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import streamlit as st

from kvsim.errors import InputError
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim_app import frame, session
from kvsim_app.jobs import Job
from kvsim_app.presets import PRESETS
from kvsim_app.session import choose, pool, selection, store

_POLL_S = 0.05
_TELL_S = 0.3
"""between two updates of the bar: each is work for the browser, on cores that simulate"""


def selected() -> dict[str, Result]:
    """The selection's runs by name: policies, then recorded folders. A first-time visitor gets the presets instead."""
    if not st.session_state.started:
        welcome()
        st.stop()
    chosen = selection()
    found = simulated(chosen.scenarios(), "Simulating")
    return found | {name: store().load(name) for name in chosen.folders}


def simulated(scenarios: Mapping[str, Scenario], what: str) -> dict[str, Result]:
    """A Result per scenario."""
    jobs = {name: pool().submit(scenario) for name, scenario in scenarios.items()}
    return {name: session.load(place) for name, place in done(jobs, what).items()}


def done(jobs: Mapping[str, Job], what: str) -> dict[str, Path]:
    """Where the jobs that end well have put what they made. Draws a progress bar while some go on; a click elsewhere
    leaves them running. The page ends here where there is nothing to show."""
    _wait(jobs, what)
    failed: dict[str, list[str]] = {}
    for name, job in jobs.items():
        if job.state == "failed":
            failed.setdefault(job.error, []).append(f"**{name}**")
    for error, names in failed.items():
        st.error(f"{', '.join(names)}: {error}", icon=":material/error:")
    found = {name: job.place for name, job in jobs.items() if job.state == "done"}
    if any(job.state == "cancelled" for job in jobs.values()):
        st.info("Stopped. What had finished is kept; **Run** goes on from there.", icon=":material/stop_circle:")
    if jobs and not found and not selection().folders:
        st.stop()
    return found


def _wait(jobs: Mapping[str, Job], what: str) -> None:
    if all(job.ended for job in jobs.values()):
        return
    place = st.empty()
    with place.container():
        left, right = st.columns([6, 1], vertical_alignment="bottom")
        bar = left.progress(0.0, f"{what} …")
        right.button(
            "Stop",
            icon=":material/stop:",
            on_click=pool().cancel,
            args=(list(jobs.values()),),
            width="stretch",
            key=f"stop-{what}",
        )
    told = 0.0
    while not all(job.ended for job in jobs.values()):
        if time.monotonic() - told > _TELL_S:
            told = time.monotonic()
            share = sum(1.0 if job.ended else job.share for job in jobs.values()) / len(jobs)
            busy = ", ".join(name for name, job in jobs.items() if job.state == "running")
            bar.progress(min(share, 1.0), f"{what} {busy or '…'}")
        time.sleep(_POLL_S)
    place.empty()


def one_of(runs: Mapping[str, Result], key: str) -> tuple[str, Result]:
    """The run a page looks into: a choice where there are several."""
    names = list(runs)
    name = names[0]
    if len(names) > 1:
        name = (
            st.segmented_control(
                "Run", names, default=names[0], key=f"{key}-run", label_visibility="collapsed", required=True
            )
            or names[0]
        )
    return name, runs[name]


def opened(title: str, finding: Callable[[str, Result], str]) -> tuple[str, Result]:
    """Begin a page about one run: its finding, and a choice of the run where there are several. The page ends here
    where no request was completed."""
    runs = selected()
    place = st.container()
    name, result = one_of(runs, title.lower())
    with place:
        frame.header(title, finding(name, result))
        frame.trust({name: result})
    if not result.summary["requests"]["completed"]:
        st.stop()
    return name, result


def overheard(name: str, result: Result) -> pl.DataFrame | None:
    """Prefill chunks, preemptions and swaps of a run that `selected` returned (overheard.py); None where they can't be
    known. A recorded simulation is simulated once more, which gives the same run unless kvsim has changed."""
    scenario = selection().scenarios().get(name)
    if scenario is None:
        if not (asked := result.run.get("scenario")):
            return None
        try:
            scenario = Scenario.model_validate(asked).replace(interval=False)
            again = simulated({name: scenario}, "Simulating once more")
        except (InputError, ValueError):
            return None
        if name not in again or not again[name].requests.equals(result.requests):
            return None
    return session.events(pool().submit(scenario).place)


def welcome() -> None:
    """What a first-time visitor sees: questions to start from, one click each."""
    st.title("What does the KV cache do to your GPU?")
    st.markdown(
        "kvsim replays request traffic through a simulated LLM serving engine and shows what each **cache policy** "
        "does to memory, fragmentation and latency. Pick a question, or set up your own in the sidebar and press "
        "**Run**."
    )
    columns = st.columns(2)
    for number, preset in enumerate(PRESETS.values()):
        with columns[number % 2].container(border=True, height="stretch"):
            st.subheader(preset.question, anchor=False)
            st.markdown(preset.about)
            st.caption(" · ".join(preset.policies))
            kind = "primary" if number == 0 else "secondary"
            if st.button("Compare", key=f"start-{number}", type=kind, icon=":material/play_arrow:"):
                choose(preset.selection)
                st.switch_page("views/compare.py")
    st.markdown(
        "New to this? [How it works](how_it_works) teaches the KV cache from the start, and the "
        "[calculator](calculator) answers *how many tokens fit* at once."
    )
