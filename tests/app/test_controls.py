"""Every control of every page is moved to each of its options or ends: no exception, and what it should change changes.

A page without a table, or a control without a line in it, fails here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from io import BytesIO
from typing import Any

import polars as pl
import pytest
import streamlit as st
from app_controls import MAIN, Seen, address, controls, every, source_keys, start_of
from kvsim_app import runs as waiting
from kvsim_app.jobs import Pool
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.testing.v1 import AppTest


@dataclass(frozen=True)
class Moves:
    """How one control is tested."""

    changes: str = "charts finding"
    """parts of Seen that every other place of the control changes"""
    places: tuple[Any, ...] = ()
    """where it is moved to; nothing: everywhere"""
    alike: tuple[Any, ...] = ()
    """places that may show what the first one shows"""
    after: tuple[tuple[str, int], ...] = ()
    """controls, and which of their options they are moved to before"""
    address: Mapping[str, str] = field(default_factory=dict)
    """what the page is opened with, for the control to be there"""
    leaves: str = ""
    """a button that opens another page; this part of the address changes"""


def chapter(number: int, changes: str = "charts finding", after: tuple[tuple[str, int], ...] = ()) -> Moves:
    return Moves(changes, after=(("chapter", number), *after))


KINDS = ("deepseek-v3", "gemma-3-27b", "gpt-oss-120b", "llama-2-7b", "llama-3.1-405b", "mixtral-8x7b", "qwen2.5-72b")
"""of the catalogue's models, one of each way to attend"""
CSV = SEPARATE = Moves("")
"""tested by a function of its own below"""
PAGES: dict[str, dict[str, Moves]] = {
    "start": {f"start-{number}": Moves(leaves="policies") for number in range(4)},
    "answer": {
        "slo-ttft": Moves("charts tables"), "slo-tpot": Moves("charts finding tables numbers"),
        "target": Moves("charts finding tables numbers"), "price": Moves("numbers tables"), "csv-answer": CSV,
    },
    "load_curve": {"slo-ttft": Moves(), "slo-tpot": Moves(), "csv-load-curve": CSV},
    "pareto": {"pareto": SEPARATE, "pareto-open": SEPARATE, "csv-pareto": CSV},
    "compare": {
        "compare-metric": Moves("charts text"), "compare-before": Moves("charts"), "compare-after": Moves("charts"),
        "csv-compare": CSV,
    },
    "anatomy": {"anatomy-run": Moves("charts text"), "csv-memory": CSV},
    "memory_map": {
        "map-run": Moves(), "map-at-*": Moves("charts text"), "map-whole": Moves("charts"), "csv-memory-map": CSV,
    },
    "timeline": {
        "timeline-run": Moves(), "timeline-from-*": Moves("charts", address={"duration": "2m"}), "csv-timeline": CSV,
    },
    "operations": {"operations-run": Moves(), "csv-operations": CSV},
    "cost": {
        "cost-policy": Moves("charts finding tables", address={"policies": "contiguous,paged,paged-int8"}),
        "cost-sequences": Moves("charts finding tables"), "cost-context": Moves("charts finding tables"),
        "cost-chunk": Moves("charts finding tables"), "cost-family": Moves("charts text"), "csv-cost": CSV,
    },
    "calculator": {
        "calc-model": Moves("charts finding", places=KINDS), "calc-device": Moves("charts"),
        "calc-tp": Moves(), "calc-kv": Moves(), "calc-weights": Moves(alike=("bf16",)), "calc-engine": Moves(),
        "csv-calculator": CSV,
    },
    "how_it_works": {
        "chapter": Moves("charts finding"),
        "why-n": chapter(0), "why-now": chapter(0),
        "race-prompt": chapter(1), "race-n": chapter(1), "race-log": chapter(1, "charts"),
        "race-file": chapter(1, "charts text"), "csv-race": chapter(1, ""),
        "growth-batch": chapter(2), "growth-context": chapter(2),
        "paging-layout": chapter(3), "paging-now": chapter(3),
        "paging-block": chapter(3, after=(("paging-layout", 1),)),
        "share-users": chapter(4), "share-system": chapter(4), "share-own": chapter(4),
        "quant-batch": chapter(5), "quant-context": chapter(5),
        "evict-context": chapter(6), "evict-budget": chapter(6),
        "flash-n": chapter(7),
    },
    "trace_explorer": {
        "upload": SEPARATE, "explore-*": Moves("charts finding numbers"), "simulate-traffic": Moves(leaves="trace"),
        "csv-trace": CSV,
    },
}  # fmt: skip
WHILE_WAITING = ("stop-Simulating",)
"""controls of pages that wait for runs"""


def opened(app: AppTest, page: str, moves: Moves | None = None) -> AppTest:
    """The app on a page, as far moved as a control needs it."""
    if page == "start":
        app.query_params.clear()
        return app.run()
    app.query_params.update({"runs": "recorded"} | dict(moves.address if moves else {}))
    app.run()
    app.switch_page(f"views/{page}.py").run()
    for key, number in moves.after if moves else ():
        element = controls(app.main)[key]
        element.set_value(element.options[number]).run()
    return app


def line_of(app: AppTest, page: str, name: str) -> str:
    """The key of the one control that a line of the page's table stands for. All that are there have a line."""
    keys = list(controls(app.main))
    unknown = [key for key in keys if not any(fnmatch(key, line) for line in PAGES[page])]
    assert not unknown, f"{page} has controls without a line in PAGES: {unknown}"
    (key,) = [key for key in keys if fnmatch(key, name)]
    return key


def test_every_page_has_a_table_and_every_control_in_the_source_a_line() -> None:
    assert {file.stem for file in (MAIN.parent / "views").glob("*.py")} == set(PAGES)
    lines = {line for table in PAGES.values() for line in table} | set(WHILE_WAITING)
    for pattern, where in source_keys().items():
        always_drawn = where.startswith("sidebar.py")  # test_sidebar.py
        assert always_drawn or any(fnmatch(line, pattern) for line in lines), f"no line for {pattern} ({where})"


MOVED = [(page, name) for page, table in PAGES.items() for name, moves in table.items()
         if moves.changes and not moves.leaves]  # fmt: skip


@pytest.mark.parametrize(("page", "name"), MOVED)
def test_control_changes_what_it_should(app: AppTest, page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVSIM_CHECK_CHARTS")  # test_pages.py checks them; here are hundreds
    moves = PAGES[page][name]
    opened(app, page, moves)
    key = line_of(app, page, name)
    before, start = Seen.of(app), start_of(controls(app.main)[key])
    places = moves.places or every(controls(app.main)[key])
    assert len(places) > 1 or start not in places, f"{key} can't be moved"
    for place in places:
        controls(app.main)[key].set_value(place).run()
        assert not app.exception and not app.error, f"{key} at {place}"
        assert line_of(app, page, name) == key
        now = Seen.of(app)
        same = [part for part in moves.changes.split() if getattr(now, part) == getattr(before, part)]
        if place == start:
            assert same == moves.changes.split(), f"{key} does not come back to what {place} showed"
        elif place not in moves.alike:
            assert not same, f"{key} at {place} changes nothing in {same}"


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page, table in PAGES.items() for name, moves in table.items() if moves.leaves]
)
def test_button_opens_a_comparison(app: AppTest, page: str, name: str) -> None:
    opened(app, page)
    if page == "trace_explorer":
        controls(app.main)["explore-sample"].set_value("synth:chat").run()
    before = address(app)
    controls(app.main)[line_of(app, page, name)].click().run()
    assert not app.exception and not app.error
    assert app.main.subheader[0].value == "Compare" and Seen.of(app).charts
    changed = PAGES[page][name].leaves
    assert address(app).get(changed) and address(app)[changed] != before.get(changed)


DOWNLOADS = [(page, name) for page, table in PAGES.items() for name in table if name.startswith("csv-")]


@pytest.mark.parametrize(("page", "name"), DOWNLOADS)
def test_download_is_a_table_with_rows(app: AppTest, page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, Callable[[], bytes]] = {}
    keep = MediaFileManager.add_deferred

    def hear(manager: Any, data: Callable[[], bytes], *where: str, file_name: str, **more: Any) -> str:
        files[file_name] = data
        return keep(manager, data, *where, file_name=file_name, **more)

    monkeypatch.setattr(MediaFileManager, "add_deferred", hear)
    opened(app, page, PAGES[page][name])
    assert controls(app.main)[line_of(app, page, name)].label == "CSV"
    table = pl.read_csv(BytesIO(files[f"kvsim-{name.removeprefix('csv-')}.csv"]()))
    assert table.height and table.width > 1


def test_a_point_of_the_pareto_front_opens_its_scenario(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a click gives the page is put in here; the browser test clicks."""
    draw = st.altair_chart

    def clicked(*args: Any, **options: Any) -> Any:
        event = draw(*args, **options)
        return {"selection": {"point": [{"run": "paged", "rate": 4.0}]}} if options.get("on_select") else event

    monkeypatch.setattr(st, "altair_chart", clicked)
    opened(app, "pareto")
    assert "pareto" in controls(app.main), "the chart can be clicked"
    button = controls(app.main)[line_of(app, "pareto", "pareto-open")]
    assert button.label == "Open paged at 4 requests/s"
    button.click().run()
    assert not app.exception and not app.error and app.main.subheader[0].value == "Compare"
    assert address(app)["policies"] == "paged" and float(address(app)["rate_scale"]) != 1.0


def test_stop_ends_what_a_page_waits_for(app: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "submit", SUBMIT)
    app.query_params.update(duration="1h", policies="uncached")
    app.run()
    with monkeypatch.context() as once:
        once.setattr(waiting.time, "sleep", lambda _: st.stop())  # the script as it waits
        app.switch_page("views/compare.py").run()
    assert set(controls(app.main)) == set(WHILE_WAITING)
    controls(app.main)["stop-Simulating"].click().run()
    assert not app.exception and "Stopped." in app.main.info[0].value
    assert not controls(app.main), "what is stopped stays stopped"


SUBMIT = Pool.submit
GOOD = b"arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,200,20\n3,50,5\n"


def test_an_upload_is_shown_and_a_bad_one_is_refused_in_a_sentence(app: AppTest) -> None:
    opened(app, "trace_explorer")
    before = Seen.of(app)
    controls(app.main)["upload"].set_value(("bad.csv", GOOD + b"4,many,3\n", "text/csv")).run()
    assert not app.exception and "bad.csv line 5" in app.main.error[0].value
    assert Seen.of(app).charts == before.charts
    controls(app.main)["upload"].set_value(("mine.csv", GOOD, "text/csv")).run()
    assert not app.exception and not app.error
    assert "3 requests" in Seen.of(app).finding[0] and Seen.of(app).charts != before.charts
