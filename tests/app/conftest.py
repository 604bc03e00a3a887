"""The app in Streamlit's AppTest: a results folder of its own, filled once with the default runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

import kvsim_app
from kvsim_app import load
from kvsim_app.selection import Selection
from kvsim_app.store import Store
from kvsim_app.tasks import TASKS
from streamlit.testing.v1 import AppTest

from kvsim.scenario import Scenario
from kvsim.simulate import run

MAIN = Path(kvsim_app.__file__).with_name("main.py")
QUERY = {
    "trace": "sample", "duration": "20s", "model": "llama-3.1-8b", "device": "h100-sxm", "interval": "false",
    "policies": "contiguous,paged",
}  # fmt: skip


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A results folder that holds every run that the pages of QUERY ask for: no worker has to simulate."""
    store = Store(tmp_path_factory.mktemp("results"))
    chosen = Selection.from_query(QUERY)
    for scenario in chosen.scenarios().values():
        keep(store, scenario)
    for scenario in load.scenarios(chosen.base, chosen.policies).values():
        for task in ("plan", "curve"):
            keep(store, scenario, task, slo="ttft_p99=2000ms,tpot_p99=100ms")
    run(chosen.scenarios()["paged"]).save(store.root / "recorded")
    return store


def keep(store: Store, scenario: Scenario, task: str = "run", **options: str) -> None:
    admitted = store.admit(scenario)
    TASKS[task](admitted, store.place(admitted, task, options), **options)


@pytest.fixture
def app(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    """The app at QUERY's address, on its first page, not yet run."""
    monkeypatch.setenv("KVSIM_RESULTS", str(store.root))
    monkeypatch.setenv("KVSIM_CHECK_CHARTS", "1")
    app = AppTest.from_file(str(MAIN), default_timeout=120)
    for key, value in QUERY.items():
        app.query_params[key] = value
    yield app
