"""The results folder, uploads, addresses and worker processes."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from kvsim_app.jobs import Pool
from kvsim_app.measured import measured
from kvsim_app.selection import Selection
from kvsim_app.store import UPLOAD_MB, Store

from kvsim.errors import InputError

CSV = b"arrival_s,prompt_tokens,output_tokens\n0,100,10\n1,200,20\n"


@pytest.mark.parametrize("name", ["../secret", "/etc", "cache/../../x"])
def test_no_path_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="outside the results folder"):
        Store(tmp_path).inside(name)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    with pytest.raises(InputError, match="outside"):
        Store(tmp_path / "in").load("link")


def test_an_upload_is_kept_and_can_be_simulated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = store.keep("my trace.csv", CSV)
    assert store.uploads() == [name]
    scenario = Selection.default().base.replace(trace=name)
    assert store.admit(scenario).trace == str(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("bad.csv", b"hello\nworld\n"),
        ("bad.csv", CSV + b"2,many,3\n"),
        ("cut.csv.gz", gzip.compress(CSV, mtime=0)[:30]),
        ("../../x.csv", b"\x80\x04\x95"),
        ("big.csv", b"0" * ((UPLOAD_MB << 20) + 1)),
    ],
)
def test_a_bad_upload_is_refused_in_a_sentence_and_not_kept(tmp_path: Path, name: str, data: bytes) -> None:
    store = Store(tmp_path)
    with pytest.raises(InputError):
        store.keep(name, data)
    assert store.uploads() == [] and not list(tmp_path.parent.glob("x*.csv"))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim_app.store.UNPACKED_MB", 1)
    with pytest.raises(InputError, match="unpacks to more than"):
        Store(tmp_path).keep("bomb.csv.gz", gzip.compress(b"0" * (3 << 20)))


@pytest.mark.parametrize(
    "trace", ["/etc/passwd", "uploads/../../x", "synth:chat?prompt=trace:/etc/passwd", "other.csv", "uploads/none.csv"]
)
def test_an_address_opens_no_file_of_the_machine(tmp_path: Path, trace: str) -> None:
    with pytest.raises(InputError):
        Store(tmp_path).admit(Selection.from_query({"trace": trace}).base)


def test_a_selection_comes_back_from_its_address() -> None:
    said = {"trace": "sample", "rate_scale": "2.5", "policies": "paged,paged-int8", "interval": "false", "runs": "a/b"}
    chosen = Selection.from_query(said)
    assert Selection.from_query(chosen.query()) == chosen
    assert chosen.base.rate_scale == 2.5 and chosen.base.interval is False and chosen.base.duration is None


@pytest.mark.parametrize(
    ("said", "message"),
    [({"policies": "a"}, "unknown policy"), ({"policies": ""}, "no policy"), ({"modle": "x"}, "did you mean"),
     ({"policies": "paged,buddy,radix", "runs": "a,b"}, "at most 4")],
)  # fmt: skip
def test_a_wrong_address_is_explained(said: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Selection.from_query(said)


def test_a_worker_runs_is_stopped_and_goes_on(tmp_path: Path) -> None:
    pool = Pool(Store(tmp_path))
    base = Selection.default().base.replace(policy="paged", interval=False)
    long = pool.submit(base.replace(policy="uncached", duration="1h"))
    pool.cancel([long])
    short = pool.submit(base.replace(limit=3))
    until = time.monotonic() + 120
    while not short.ended and time.monotonic() < until:
        time.sleep(0.05)
    assert (long.state, short.state) == ("cancelled", "done")
    assert (short.place / "run.json").is_file() and not long.place.exists()
    assert pool.submit(base.replace(limit=3)).state == "done"
    # a page that is drawn again does not start what was stopped; pressing Run does
    assert pool.submit(long.scenario) is long
    pool.resume()
    again = pool.submit(long.scenario)
    assert not again.ended
    pool.cancel([again])


def test_measured_answers_are_read_from_the_folder_and_the_app(tmp_path: Path) -> None:
    (bundled,) = measured(Store(tmp_path))
    assert bundled.uncached[-1] > bundled.cached[-1] > 0
    own = {"model": "m", "dtype": "bf16", "machine": "x", "date": "2026-01-01", "cached_ns": [1e9, 2e9],
           "uncached_ns": [1e9, 3e9]}  # fmt: skip
    (tmp_path / "x.generation.json").write_text(json.dumps(own))
    first, _ = measured(Store(tmp_path))
    assert (first.what, first.uncached.tolist()) == ("m, bf16, x, 2026-01-01", [1.0, 3.0])
    (tmp_path / "x.generation.json").write_text(json.dumps(own | {"cached_ns": [1e9]}))
    with pytest.raises(InputError, match=r"x\.generation\.json is no file"):
        measured(Store(tmp_path))
