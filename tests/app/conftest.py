"""The app in Streamlit's AppTest: a results folder of its own, filled once with the default runs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("altair")

from app_controls import MAIN, QUERY
from kvsim_app.jobs import Job, Pool
from kvsim_app.selection import Selection
from kvsim_app.store import Store
from kvsim_app.tasks import TASKS
from streamlit.testing.v1 import AppTest

from kvsim.scenario import Scenario
from kvsim.simulate import run

REQUESTS = 200
"""of a trace, at most: enough for every chart"""


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A results folder with a recorded run, and answers that somebody timed."""
    store = Store(tmp_path_factory.mktemp("results"))
    run(Selection.from_query(QUERY).base.replace(policy="paged-prefix")).save(store.root / "recorded")
    timed = {"model": "m", "dtype": "bf16", "machine": "here", "date": "2026-01-01", "cached_ns": [1e9, 2e9, 3e9],
             "uncached_ns": [1e9, 3e9, 6e9]}  # fmt: skip
    (store.root / "own.generation.json").write_text(json.dumps(timed))
    return store


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page asks for is made at once, in this process, of the first REQUESTS of its trace."""
    submit = Pool.submit

    def make(pool: Pool, scenario: Scenario, task: str = "run", **options: str) -> Job:
        asked = pool.store.admit(scenario)
        place = pool.store.place(asked, task, options)
        if not place.exists():
            TASKS[task](asked.replace(limit=min(asked.limit or REQUESTS, REQUESTS)), place, **options)
        return submit(pool, scenario, task, **options)

    monkeypatch.setattr(Pool, "submit", make)


@pytest.fixture
def app(store: Store, at_once: None, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The app at QUERY's address, on its first page, not yet run."""
    monkeypatch.setenv("KVSIM_RESULTS", str(store.root))
    monkeypatch.setenv("KVSIM_CHECK_CHARTS", "1")
    app = AppTest.from_file(str(MAIN), default_timeout=120)
    for key, value in QUERY.items():
        app.query_params[key] = value
    return app
