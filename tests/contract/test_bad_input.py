"""Bad input, end to end: exit 2 and one sentence that says where, what, and what would be right. Never a traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from kvsim import cli

HEAD = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = HEAD + "0.0,10,5\n1.0,10,5\n"
MODEL, DEVICE = ["--model", "llama-3.1-8b"], ["--device", "h100-sxm"]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `kvsim simulate` on a trace with this content; (exit code, stdout, stderr)."""

    def call(content: str | bytes, *flags: str, name: str = "t.csv") -> tuple[int, str, str]:
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        arguments = list(flags)
        for default in (MODEL, DEVICE):
            if default[0] not in arguments:
                arguments += default
        code = cli.main(["simulate", "--trace", str(file), "--no-interval", "--json", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def one_sentence(code: int, out: str, err: str) -> str:
    assert (code, out) == (2, ""), err
    assert err.startswith("kvsim: ")
    assert err.count("\n") == 1
    assert len(err) < 400
    return err


def test_where_no_step_ran_the_profile_is_still_what_it_is(simulate: Call) -> None:
    code, out, _ = simulate(GOOD, "--max-model-len", "4")
    found = json.loads(out)
    assert (code, found["requests"]["refused"], found["steps"], found["provenance"]["tier"]) == (0, 2, 0, "imported")


def test_the_good_one_works(simulate: Call) -> None:
    code, out, err = simulate(GOOD)
    assert (code, err) == (0, "")
    assert json.loads(out)["requests"]["completed"] == 2


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (HEAD + "0.0,10,5\n1.0,nan,5\n", "3"),
        (HEAD + "0.0,10,5\n1.0,-4,5\n", "3"),
        (HEAD + "0.0,10,5\n1.0,10,1000000000000\n", "3"),
        (HEAD + "0.0,10,5\n1.0,ten,5\n", "3"),
        (HEAD + "0.0,10,5\nnan,10,5\n", "3"),
        ("id,arrival_s,prompt_tokens,output_tokens\na,0,1,1\na,1,1,1\n", "3"),
    ],
    ids=["nan tokens", "negative tokens", "1e12 tokens", "words", "nan arrival", "duplicate ids"],
)
def test_a_bad_row_is_named(simulate: Call, content: str, line: str) -> None:
    error = one_sentence(*simulate(content))
    assert "t.csv" in error
    assert f"line {line}" in error


@pytest.mark.parametrize(
    "content",
    ["arrival_s,prompt_tokens\n0.0,10\n", GOOD.replace(",", ";"), "hello\nworld\n", b"\xff\xfe\x00\x01" * 40],
    ids=["missing column", "wrong delimiter", "no trace", "binary"],
)
def test_a_bad_file_is_named(simulate: Call, content: str | bytes) -> None:
    assert "t.csv" in one_sentence(*simulate(content))


def test_a_truncated_gzip(simulate: Call) -> None:
    rows = HEAD + "".join(f"{i}.0,{i % 97 + 1},{i % 31 + 1}\n" for i in range(5000))
    whole = gzip.compress(rows.encode())
    assert "t.csv.gz" in one_sentence(*simulate(whole[: len(whole) // 2], name="t.csv.gz"))


def test_an_empty_trace_ends_cleanly(simulate: Call) -> None:
    code, out, err = simulate(HEAD)
    assert code == 2 or (code == 0 and json.loads(out)["requests"]["total"] == 0), err
    assert err.count("\n") == (code == 2)


@pytest.mark.parametrize("value", ["nan", "0", "-1", "inf", "fast"])
@pytest.mark.parametrize("name", ["--rate", "--rate-scale", "--scale-lengths"])
def test_rates(simulate: Call, name: str, value: str) -> None:
    assert one_sentence(*simulate(GOOD, name, value)).startswith(f"kvsim: {name} ")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "llama-3.1-8"], ["unknown model", "did you mean", "llama-3.1-8b"]),
        (["--model", "llama-99"], ["did you mean llama-3.3-70b, llama-3.1-70b or llama-3-70b?"]),
        (["--model", "nonsense"], ["unknown model", "the nearest of ", "see `kvsim list models`"]),
        (["--device", "h100"], ["unknown device", "did you mean", "h100-sxm"]),
        (["--policy", "pagd"], ["unknown policy", "did you mean paged"]),
        (["--engine", "vlm"], ["unknown engine"]),
        (["--scheduler", "chunky"], ["unknown scheduler", "did you mean chunked"]),
        (["--router", "robin"], ["unknown router", "did you mean round-robin"]),
        (["--transfer", "pcie"], ["pcie"]),
        (["--mix", "l40:2"], ["unknown device 'l40': did you mean l40s?"]),
        (["--replicas", "2", "--router", "robin"], ["unknown router", "did you mean round-robin"]),
        (["--layout", "pages"], ["unknown layout", "did you mean paged"]),
        (["--kv-dtype", "int3"], ["int3"]),
        (["--retention", "windw"], ["windw"]),
        (["--tier", "disk"], ["tier 'disk'"]),
        (["--trace-format", "csvv"], ["csvv"]),
        (["--arrivals", "poison:2"], ["poison"]),
        (["--model", "llama-3.1-405b"], ["405b", "h100-sxm"]),
        (["--policy", "uncached", "--kv-dtype", "int8"], ["layout none"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_names_and_what_does_not_go_together(simulate: Call, flags: list[str], words: list[str]) -> None:
    error = one_sentence(*simulate(GOOD, *flags))
    for word in words:
        assert word in error


def test_a_profile_of_a_newer_schema(simulate: Call, tmp_path: Path) -> None:
    text = resources.files("kvsim").joinpath("data/profiles/h100-sxm.json").read_text()
    profile = json.loads(text)
    profile["schema"] = 99
    (tmp_path / "new.json").write_text(json.dumps(profile))
    error = one_sentence(*simulate(GOOD, "--device", str(tmp_path / "new.json")))
    assert "new.json" in error
    assert "99" in error


@pytest.mark.parametrize("flag", ["--model", "--device"])
def test_a_file_that_is_no_json(simulate: Call, tmp_path: Path, flag: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json" in one_sentence(*simulate(GOOD, flag, str(tmp_path / "bad.json")))
    assert "gone.json" in one_sentence(*simulate(GOOD, flag, str(tmp_path / "gone.json")))


def test_unsorted_arrivals_are_sorted_with_a_note(simulate: Call, tmp_path: Path) -> None:
    code, _, err = simulate(HEAD + "5.0,10,5\n1.0,10,5\n", "--out", str(tmp_path / "r"))
    assert code == 0, err
    assert any("sorted" in note for note in json.loads((tmp_path / "r" / "run.json").read_text())["notes"])


def test_over_long_requests_are_refused_and_counted(simulate: Call) -> None:
    code, out, err = simulate(HEAD + "0.0,10,5\n1.0,5000000,5\n")
    assert code == 0, err
    requests = json.loads(out)["requests"]
    assert (requests["completed"], requests["refused"], requests["refused_reasons"]) == (1, 1, {"too_long": 1})


WRONG = {"model": "llama-99", "device": "h101", "policy": "pagd", "engine": "vlm-1", "scheduler": "chunkd",
         "router": "robin", "trace_format": "azur", "mix": "h101:2", "trace": "sampel"}  # fmt: skip
RIGHT = {"trace": "sample", "model": "llama-3.1-8b", "device": "h100-sxm", "policy": "paged"}


@pytest.mark.parametrize(("command", "name"), [
    (command, name) for command in ("simulate", "compare", "plan") for name in WRONG
    if command != "plan" or name not in ("router", "mix")  # it sizes one replica
])  # fmt: skip
def test_a_wrong_name_is_refused_before_the_trace_is_read(
    command: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the name that was meant, whatever the command."""
    own = {"compare": {"policy": "policies"}, "plan": {"policy": "policies", "device": "devices"}}.get(command, {})
    monkeypatch.setattr("kvsim.trace.loading._sample", lambda: pytest.fail("reads the trace"))
    given = RIGHT | {name: WRONG[name]}
    flags = [word for key, value in given.items() for word in (f"--{own.get(key, key).replace('_', '-')}", value)]
    code = cli.main([command, *flags, "--no-interval", "--json"])
    assert "did you mean" in one_sentence(code, *capsys.readouterr())
