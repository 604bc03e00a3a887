"""`kvsim trace`: JSON keys as in cli.md, files that read back the same, one sentence for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvsim.cli import main
from kvsim.trace import Trace, load
from kvsim.trace.chain import runs
from kvsim.trace.write import write

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
KEYS = ["format", "rows", "dropped", "duration_s", "rate_per_s", "peak_rate_1s", "peak_rate_10s", "prompt", "output",
        "block_size", "reusable_share"]  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, object]:
    assert main(["trace", *map(str, args), "--json"]) == 0
    found = capsys.readouterr()
    assert not found.err
    return dict(json.loads(found.out))


def same(one: Trace, other: Trace) -> None:
    for name in ("arrival_ns", "prompt_tokens", "output_tokens", "parent", "after_parent_ns", "priority"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    for row in range(len(one)):
        assert [(first, count) for _, first, count in runs(one, row, 16)] == [
            (first, count) for _, first, count in runs(other, row, 16)
        ]
    pairs = {pair for row in range(len(one)) for pair in zip(one[row].block_ids, other[row].block_ids, strict=True)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_info_has_exactly_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "info", DATA / "mooncake.jsonl")
    assert list(facts) == KEYS
    assert list(facts["prompt"]) == list(facts["output"]) == ["p50", "p90", "p99", "max"]  # type: ignore[call-overload]
    assert facts["rows"] == 4 and facts["duration_s"] == 3 and facts["block_size"] == 512
    # 600 of 600 … : rows 2 to 4 find 1024, 512 and 1100 of their tokens.
    assert facts["reusable_share"] == pytest.approx((1024 + 512 + 1100) / (1100 + 1536 + 600 + 1100))


def test_peak_rates_use_windows_from_the_first_arrival(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    times = (5.9, 6.1, 6.8, 6.95, 17.0)  # windows of 1 s from 5.9: three in [5.9, 6.9), one in [6.9, 7.9)
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},1,1\n" for at in times))
    facts = answer(capsys, "info", file)
    assert facts["peak_rate_1s"] == 3 and facts["peak_rate_10s"] == 0.4


def test_info_describes_lengths_without_times(capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(capsys, "info", DATA / "lengths.csv")
    assert facts["rows"] == 3 and facts["duration_s"] is None and facts["peak_rate_1s"] is None


def test_info_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", str(DATA / "burstgpt_1.csv")]) == 0
    text = capsys.readouterr().out
    assert "burstgpt" in text and "1 (failed)" in text and "peak" in text
    assert main(["trace", "info", str(DATA / "claude")]) == 0
    text = capsys.readouterr().out
    assert "conversations" in text and "with earlier" in text.replace("\n", " ")


@pytest.mark.parametrize("out", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize("name", ["azure_2023.csv", "claude", "kvsim.csv", "mooncake.jsonl", "ragpulse", "vllm/run"])
def test_what_is_converted_reads_back_the_same(
    name: str, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = answer(capsys, "convert", DATA / name, tmp_path / out)
    after = answer(capsys, "info", tmp_path / out)
    assert after == before | {"format": "kvsim", "dropped": {}}
    same(load(DATA / name), load(tmp_path / out))
    assert [file.name for file in tmp_path.iterdir()] == [out]


def test_a_trace_is_always_the_same_file(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write(load("synth:chat?requests=50"), tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_convert_changes_in_the_stated_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.csv"
    rows = "".join(f"{at},100,10\n" for at in range(100))
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    facts = answer(
        capsys, "convert", file, tmp_path / "o.csv", "--rate-scale", 2, "--start", "10s", "--duration", "20s",
        "--limit", 30, "--repeat", 2, "--scale-lengths", 0.5,
    )  # fmt: skip
    assert facts["rows"] == 60 and facts["prompt"]["max"] == 50  # type: ignore[index]
    assert facts["duration_s"] == 29.5
    facts = answer(capsys, "convert", file, tmp_path / "o.csv", "--rate", 4)
    assert facts["rate_per_s"] == pytest.approx(4)


def test_synth_is_the_trace_of_the_same_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = answer(
        capsys, "synth", "sharegpt", tmp_path / "o.csv", "--requests", 40, "--rate", 3, "--seed", 5, "--set", "turns=2"
    )
    assert facts["rows"] == 40
    same(load(tmp_path / "o.csv"), load("synth:sharegpt?requests=40&rate=3&seed=5&turns=2"))


def test_the_bundled_sample_is_what_its_command_makes(tmp_path: Path) -> None:
    """docs/traces.md: kvsim trace synth chat chat-hour.csv.gz --duration 1h --seed 1"""
    made, sample = load("synth:chat?duration=1h&seed=1"), load("sample")
    assert len(made) == len(sample)
    assert (made.prompt_tokens == sample.prompt_tokens).mean() > 0.999  # a libm may round otherwise
    import kvsim

    place = Path(kvsim.__file__).parent / "data" / "samples" / "chat-hour.csv.gz"
    assert place.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["info", "absent.csv"], "no trace at 'absent.csv'"),
        (["info", "synth:chatt"], "did you mean chat"),
        (["convert", DATA / "vidur.csv", "o.txt"], "must end in .csv or .jsonl"),
        (["convert", DATA / "vidur.csv", "absent/o.csv"], "cannot be written"),
        (["convert", DATA / "vidur.csv", "o.csv", "--rate", "nan"], "rate is nan"),
        (["convert", DATA / "vidur.csv", "o.csv", "--rate", "0"], "rate is 0"),
        (["convert", DATA / "vidur.csv", "o.csv", "--rate-scale", "-1"], "rate scale is -1"),
        (["convert", DATA / "vidur.csv", "o.csv", "--rate", "1", "--rate-scale", "2"], "give one of them"),
        (["convert", DATA / "vidur.csv", "o.csv", "--repeat", "0"], "repeat is 0"),
        (["synth", "chat", "o.csv", "--set", "turns"], "write KEY=VALUE"),
        (["synth", "chat", "o.csv", "--rate", "nan"], "rate"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    args: list[object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *map(str, args)]) == 2
    found = capsys.readouterr()
    assert said in found.err.replace("\n", " ") and "Traceback" not in found.err and not found.out
    assert not list(tmp_path.iterdir())
