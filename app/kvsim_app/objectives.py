"""What Answer, Load curve and Pareto share: the objectives, and the scenario at several rates."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.simulate import trace_of
from kvsim_app import load
from kvsim_app.runs import simulated, welcome
from kvsim_app.session import selection, setup, store
from kvsim_app.steady import Steady, limit, steady


@dataclass(frozen=True)
class Curve:
    """Points of a load curve and what each policy holds; `rate`: requests/s of the scenario, `gpus`: of a
    replica, `tiers`: of the runs' cost models."""

    points: list[load.Point]
    capacities: list[load.Capacity]
    limits: dict[str, float]
    rate: float
    gpus: int
    tiers: set[str]


@st.cache_data(show_spinner=False, max_entries=16)
def _rate(text: str) -> float:
    trace = trace_of(Scenario.model_validate_json(text))
    span = (int(trace.arrival_ns.max()) - int(trace.arrival_ns.min())) / 1e9 if len(trace) else 0.0
    return len(trace) / span if span else 1.0


@st.cache_resource(show_spinner=False, max_entries=128)
def _steady(key: str, _result: Result) -> Steady:
    return steady(_result)


def curve() -> Curve:
    """Ask for the objectives, run what is missing (with progress), and return the load curve of every policy."""
    if not st.session_state.started:
        welcome()
        st.stop()
    chosen = selection()
    if not chosen.policies:
        st.info("These pages simulate: choose at least one policy in the sidebar.", icon=":material/info:")
        st.stop()
    left, right = st.columns(2)
    limits = {
        "ttft_p99": left.number_input("TTFT p99 within (s)", 0.01, 600.0, 2.0, 0.5, key="slo-ttft",
                                      help="99 % of first tokens come within this time."),
        "tpot_p99": right.number_input("TPOT p99 within (ms)", 1.0, 10_000.0, 100.0, 10.0, key="slo-tpot",
                                       help="99 % of requests get their tokens at this pace or faster.") / 1e3,
    }  # fmt: skip
    scenarios = load.scenarios(chosen.base, chosen.policies)
    rate = _rate(store().admit(chosen.base).model_dump_json())
    gpus = chosen.base.tp * chosen.base.pp * chosen.base.replicas
    found_runs = simulated(scenarios, "Trying rates:")
    runs = {name: _steady(scenarios[name].key, result) for name, result in found_runs.items()}

    def why(point: load.Point, missed: tuple[str, ...]) -> tuple[str, str]:
        name = f"{point.policy} × {point.scale:g}"
        binds, because = limit(runs[name], setup(scenarios[name]), missed)
        for key, title in load.METRICS.items():
            because = because.replace(key, title)
        return binds, because

    found = load.points(runs, limits, gpus)
    tiers = {str(run.result.run["provenance"]["tier"]) for run in runs.values()}
    return Curve(found, load.capacities(found, limits, why), limits, rate, gpus, tiers)
