"""Where results go, end to end: whole or not at all, and what was there before stays where they can't."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import polars as pl
import pytest

from kvsim import cli

RUN = ["simulate", "--trace", "sample", "--limit", "5", "--model", "llama-3.1-8b", "--device", "h100-sxm", "--json",
       "--no-interval"]  # fmt: skip


def refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = cli.main([*RUN, *flags])
    out, err = capsys.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith("kvsim: ")
    assert err.count("\n") == 1
    return err


def test_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "name one in it" in refused(["--out", "."], capsys)
    assert "is a folder: name a file" in refused(["--html", "."], capsys)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*RUN, "--out", str(tmp_path / "r")]) == 0
    capsys.readouterr()
    before = {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir()}

    def full(*_: object, **__: object) -> None:
        raise pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    error = refused(["--out", str(tmp_path / "r")], capsys)
    assert "can't be written" in error
    assert "No space left" in error
    assert {file.name: file.read_bytes() for file in (tmp_path / "r").iterdir()} == before
    assert [file.name for file in tmp_path.iterdir()] == ["r"]


def test_a_page_goes_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    assert cli.main([*RUN, "--html", str(tmp_path / "link.html")]) == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().startswith("<!")


def test_a_page_goes_into_a_pipe_and_does_not_replace_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    assert cli.main([*RUN, "--html", str(pipe)]) == 0
    reader.join(10)
    assert pipe.is_fifo()
    assert read[0].startswith("<!")
