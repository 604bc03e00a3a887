"""A session of measuring: the order of visits, raw rows that outlive a kill, cases that fail, a device that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvsim_calibration.backends import session
from kvsim_calibration.backends.cases import Case, Lost
from kvsim_calibration.backends.clock import Timing
from kvsim_calibration.backends.store import Store

from kvsim.errors import InputError


class Instant:
    """A backend that takes no time: what a case costs hangs on its name alone."""

    visits = 3

    def __init__(self) -> None:
        self.made: list[str] = []

    def time(self, case: Case) -> dict[str, Timing]:
        self.made.append(case.name)
        if case.values.get("window") == 1:
            raise RuntimeError("out of memory\nand more")
        ns = float(1000 + sum(map(ord, case.name)) % 977)
        columns = ("ns", "ns_mean", "ns_longest") if case.family == "skew" else ("ns",)
        return {column: Timing(ns, 0.9 * ns, 1.1 * ns, 5) for column in columns}


def test_visits_to_a_case_lie_apart_and_a_coarse_level_is_seen_twice_before_the_finest(grid: list[Case]) -> None:
    places = {(case.name, visit): at for at, (case, visit) in enumerate(session.order(grid, 3))}
    assert len(places) == 3 * len(grid)
    coarse, fine = ([case.name for case in grid if case.level == level] for level in (0, 2))
    assert max(places[name, 1] for name in coarse) < min(places[name, 0] for name in fine)
    assert next(iter(session.order(grid, 3)))[0].family == "ceiling"


def test_a_session_goes_on_where_another_stopped(grid: list[Case], tmp_path: Path) -> None:
    path, run = tmp_path / "x.rows.jsonl", Instant()
    store = Store(path)
    store.describe({"backend": "torch", "name": "x"})
    assert session.measure(grid, run, store, 0.0) == session.Outcome(0, 3 * len(grid))
    session.measure(grid[:40], run, store, 60.0)
    before = path.read_bytes()
    path.write_bytes(before[:-7])  # a kill in the middle of a line
    again = Store(path)
    outcome = session.measure(grid, run, again, 60.0)
    assert outcome.left == 0 and outcome.made == 3 * (len(grid) - 40) + 1
    assert path.read_bytes().startswith(before[:-7])
    kept = Store(path)
    assert sorted((r["case"], r["visit"]) for r in kept.rows) == sorted(
        (case.name, visit) for case in grid for visit in range(3))


def test_a_case_that_does_not_run_is_put_down_once_and_not_tried_again(grid: list[Case], tmp_path: Path) -> None:
    broken = Case("decode", {**next(c.values for c in grid if c.family == "decode"), "window": 1})
    run, store = Instant(), Store(tmp_path / "x.jsonl")
    session.measure([broken], run, store, 60.0)
    assert run.made == [broken.name] and store.rows[0]["failed"] == "out of memory"


def test_raw_rows_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    store = Store(tmp_path / "x.jsonl")
    store.describe({"name": "a", "cores": 2})
    with pytest.raises(InputError, match="cores 2, now 4"):
        Store(tmp_path / "x.jsonl").describe({"name": "a", "cores": 4})
    (tmp_path / "y.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(InputError, match="no raw rows"):
        Store(tmp_path / "y.jsonl")


def test_a_lost_device_ends_the_run_and_spoils_one_case(grid: list[Case], tmp_path: Path) -> None:
    """After a bad address CUDA fails whatever is asked: the other cases must not be put down as failed."""
    bad = session.order(grid, 3)[3][0].name

    class Losing(Instant):
        def time(self, case: Case) -> dict[str, Timing]:
            if case.name == bad:
                raise Lost("the device is lost (CUDA error: an illegal memory access)")
            return super().time(case)

    store = Store(tmp_path / "x.rows.jsonl")
    store.describe({"name": "a GPU"})
    with pytest.raises(InputError, match=r"illegal memory access\), at .*: the rows are kept, go on with --resume"):
        session.measure(grid, Losing(), store, 60)
    again = Store(store.path)
    assert [row["case"] for row in again.rows if "failed" in row] == [bad] and len(again.rows) == 4
    assert session.measure(grid, Losing(), again, 60).left == 0
    assert {row["case"] for row in again.rows if "failed" in row} == {bad}
