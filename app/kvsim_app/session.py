"""What a visitor's session holds: the selection, kept equal to the page's address; and what all visitors share."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import streamlit as st

from kvsim.cost import Band, CostModel, StepShape
from kvsim.errors import InputError
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.setup import Setup, prepare
from kvsim.simulate import check
from kvsim_app.jobs import Pool
from kvsim_app.overheard import beside
from kvsim_app.selection import Selection
from kvsim_app.store import Store

RESULTS = "KVSIM_RESULTS"
"""environment variable that holds the results folder: `kvsim app --results` sets it"""


@st.cache_resource(show_spinner=False)
def pool_of(results: str) -> Pool:
    return Pool(Store(Path(results)))


def pool() -> Pool:
    """The worker processes, shared by all visitors."""
    return pool_of(os.environ.get(RESULTS, "results"))


def store() -> Store:
    return pool().store


def sync() -> None:
    """Read the address on a new visit or a changed link; write it otherwise, so that it is always the permalink."""
    said = {key: st.query_params[key] for key in st.query_params}
    # one by one: a rerun may interrupt the script between two of them
    for name, make in (("started", bool), ("selection", Selection.default)):
        if name not in st.session_state:
            st.session_state[name] = make()
    if said and said != st.session_state.get("address"):
        try:
            st.session_state.selection = Selection.from_query(said)
            st.session_state.started = True
        except InputError as error:
            st.session_state.complaint = f"This link can't be opened. {error}"
            st.query_params.clear()
            said = {}
    if st.session_state.started:
        address = selection().query()
        if address != said:
            st.query_params.from_dict(address)
        st.session_state.address = address


def selection() -> Selection:
    found: Selection = st.session_state.selection
    return found


def choose(chosen: Selection) -> None:
    """Look at something else, or at what was stopped again; the address follows."""
    pool().resume()
    st.session_state.selection = chosen
    st.session_state.started = True
    st.session_state.address = chosen.query()
    st.query_params.from_dict(chosen.query())


@st.cache_resource(show_spinner=False, max_entries=24)
def _load(folder: str, changed_ns: int) -> Result:
    return Result.load(folder)


def load(folder: Path) -> Result:
    """A Result folder, kept in memory until it changes on disk."""
    document = folder / "run.json"
    return _load(str(folder), document.stat().st_mtime_ns if document.is_file() else 0)


@st.cache_resource(show_spinner=False, max_entries=6)
def _events(file: str, changed_ns: int) -> pl.DataFrame:
    return pl.read_parquet(file)


def events(folder: Path) -> pl.DataFrame | None:
    """What was overheard of the run in one of the app's own folders (overheard.py); None where nothing was."""
    file = beside(folder)
    return _events(str(file), file.stat().st_mtime_ns) if file.is_file() else None


@st.cache_resource(show_spinner=False, max_entries=24)
def _prepare(text: str) -> Setup:
    return prepare(Scenario.model_validate_json(text))


def setup(scenario: Scenario) -> Setup:
    """A scenario with its names resolved. Raises InputError."""
    return _prepare(store().admit(scenario).model_dump_json())


def refuse(scenario: Scenario) -> None:
    """Raises InputError for what a run of the scenario would refuse at once."""
    check(store().admit(scenario))


Sources = dict[str, float]
"""tier → share of a step's time that comes from there"""


def sources(cost: CostModel, shape: StepShape) -> Sources:
    """Where a step's time comes from, the host's left out, as in the one tier that the cost model gives the step (and
    runs quote): the worst among terms of at least a tenth."""
    parts = [part for name, part in cost.parts(shape).items() if name != "host"]
    total = sum(part.ns for part in parts) or 1.0
    found: Sources = {}
    for part in parts:
        found[part.tier] = found.get(part.tier, 0.0) + part.ns / total
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def step_error(scenario: Scenario) -> tuple[Sources, Band]:
    """(where the time of a typical step comes from, its 90 % band)."""
    cost = setup(scenario).cost
    return sources(cost, cost.typical()), cost.error_band(cost.typical())
