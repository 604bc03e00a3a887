"""Results on disk: whole or not at all, and clear words about what is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fakes import fake_result

from kvsim.errors import InputError
from kvsim.result import ITL, MEMORY_MAP, REQUESTS, STEPS, TIMELINE, Result

TABLES = ("requests", "timeline", "steps", "itl")


def test_save_and_load_round_trip(tmp_path: Path) -> None:
    result = fake_result()
    result.save(tmp_path / "new" / "r")
    back = Result.load(tmp_path / "new" / "r")
    for name in TABLES:
        assert getattr(back, name).equals(getattr(result, name)), name
    assert (back.run, back.summary) == (result.run, result.summary)
    assert json.loads((tmp_path / "new" / "r" / "run.json").read_text())["summary"] == result.summary
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["r"], "nothing temporary stays"


def test_undefined_is_null() -> None:
    requests = fake_result().requests
    refused = requests.filter(pl.col("status") == "refused")
    assert len(refused) > 0
    assert refused["reason"].unique().to_list() == ["too_long"]
    assert refused["scheduled_ns"].null_count() == refused["last_token_ns"].null_count() == len(refused)
    assert requests.filter(pl.col("status") == "completed")["reason"].null_count() == len(requests) - len(refused)
    assert requests["session"].null_count() == len(requests)


def test_gaps_are_pooled() -> None:
    result = fake_result()
    completed = result.requests.filter(pl.col("status") == "completed")
    assert result.itl.rows() == [(12_000_000, (completed["output_tokens"] - 1).sum())]


def test_save_replaces_a_result_and_nothing_else(tmp_path: Path) -> None:
    fake_result(seed=1).save(tmp_path / "r")
    fake_result(seed=2).save(tmp_path / "r")
    assert Result.load(tmp_path / "r").run["scenario"]["seed"] == 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(InputError, match="is no Result folder"):
        fake_result().save(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "precious"


def test_a_save_that_fails_half_way_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_result(seed=1).save(tmp_path / "r")
    broken = fake_result(seed=2)
    monkeypatch.setattr(json, "dumps", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken.save(tmp_path / "r")
    assert Result.load(tmp_path / "r").run["scenario"]["seed"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_load_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has no run\.json"):
        Result.load(tmp_path / "none")
    folder = tmp_path / "r"
    fake_result().save(folder)
    (folder / "steps.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(InputError, match=r"steps\.parquet is not a readable Parquet file"):
        Result.load(folder)
    (folder / "steps.parquet").unlink()
    with pytest.raises(InputError, match=r"steps\.parquet is missing"):
        Result.load(folder)
    pl.DataFrame({"start_ns": [1]}).write_parquet(folder / "steps.parquet")
    with pytest.raises(InputError, match="lacks the column 'end_ns'"):
        Result.load(folder)
    (folder / "run.json").write_text('{"schema": 99}')
    with pytest.raises(InputError, match="schema 99; this version of kvsim reads schema 1"):
        Result.load(folder)
    (folder / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json is not JSON"):
        Result.load(folder)


def test_the_document_names_every_column() -> None:
    document = (Path(__file__).parents[2] / "docs" / "results.md").read_text()
    for table in (REQUESTS, TIMELINE, STEPS, ITL, MEMORY_MAP):
        for column in table:
            assert f"`{column}`" in document, column


@pytest.mark.parametrize("run", [{}, {"provenance": 3}, {"provenance": {"model": "m"}},
                                 {"provenance": {"model": "m", "device": None}}])  # fmt: skip
def test_a_folder_that_does_not_say_what_ran_is_refused(tmp_path: Path, run: dict[str, Any]) -> None:
    """It would be shown as "None on 1 × None"."""
    folder = tmp_path / "run"
    fake_result().save(folder)
    (folder / "run.json").write_text(json.dumps({"schema": 1, **run}))
    with pytest.raises(InputError, match=r"run\.json does not say on what it ran"):
        Result.load(folder)
