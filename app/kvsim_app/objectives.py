"""What Answer, Load curve and Pareto share: the objectives, and one replica under load."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvsim.errors import InputError
from kvsim.plan.alone import ALONE
from kvsim.scenario import Scenario
from kvsim.simulate import trace_of
from kvsim.trace.transform import mean_rate
from kvsim_app import load
from kvsim_app.runs import done, welcome
from kvsim_app.selection import Selection
from kvsim_app.session import pool, selection, store

_LIMITS = {"ttft_p99": 2.0, "tpot_p99": 0.1}


def planned() -> Selection:
    """The selection, on a page that asks the planner; it ends here where there is nothing to ask."""
    if not st.session_state.started:
        welcome()
        st.stop()
    chosen = selection()
    if not chosen.policies:
        st.info("These pages simulate: choose at least one policy in the sidebar.", icon=":material/info:")
        st.stop()
    said = [name.replace("_", " ") for name, value in ALONE.items() if getattr(chosen.base, name) != value]
    if said:
        st.info(f"One replica is sized, split by tensor parallelism only: {', '.join(said)} is not looked at here.")
    return chosen


def ask_limits() -> dict[str, float]:
    """The objectives, in seconds; kept from page to page."""
    kept = limits()
    left, right = st.columns(2)
    ttft = left.number_input("TTFT p99 within (s)", 0.01, 600.0, kept["ttft_p99"], 0.5, key="slo-ttft",
                             help="99 % of first tokens come within this time.")  # fmt: skip
    tpot = right.number_input("TPOT p99 within (ms)", 1.0, 10_000.0, kept["tpot_p99"] * 1e3, 10.0, key="slo-tpot",
                              help="99 % of requests get their tokens at this pace or faster.")  # fmt: skip
    st.session_state.limits = {"ttft_p99": ttft, "tpot_p99": tpot / 1e3}
    return limits()


def limits() -> dict[str, float]:
    found: dict[str, float] = st.session_state.get("limits", _LIMITS)
    return found


def held() -> list[load.Held]:
    """What a replica of each policy holds under the objectives (with progress)."""
    return [load.held(file) for file in _made("plan", "Searching the largest rate:").values()]


def points() -> list[load.Point]:
    """The load curve of each policy (with progress)."""
    gpus = selection().base.tp
    return [
        point
        for policy, file in _made("curve", "Trying rates:").items()
        for point in load.points(file, policy, gpus)
    ]


def _made(task: str, what: str) -> dict[str, Path]:
    chosen, slo = selection(), load.slo(limits())
    wanted = load.scenarios(chosen.base, chosen.policies)
    return done({policy: pool().submit(scenario, task, slo=slo) for policy, scenario in wanted.items()}, what)


def rate() -> float:
    """Requests/s of the scenario's traffic. Raises InputError where all of it arrives at once."""
    (scenario,) = load.scenarios(selection().base, ["paged"]).values()
    found = _rate(store().admit(scenario).model_dump_json())
    if found is None:
        raise InputError("All requests arrive at once, so there is no rate to scale: set arrivals in all settings.")
    return found


@st.cache_data(show_spinner=False, max_entries=16)
def _rate(text: str) -> float | None:
    return mean_rate(trace_of(Scenario.model_validate_json(text)))
