"""The command frame: what it prints, its exit codes, and what it does not import."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer

from kvsim import __version__, cli
from kvsim.errors import InputError


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run a command function through the frame, as `kvsim probe …`."""

    def call(command: Callable[..., None], *args: str) -> int:
        monkeypatch.setitem(cli._COMMANDS, "probe", ("kvsim_probe", "A probe"))
        monkeypatch.setitem(sys.modules, "kvsim_probe", SimpleNamespace(command=command))
        return cli.main(["probe", *args])

    return call


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in cli._COMMANDS:
        assert f"\n  {name} " in text
    assert max(map(len, text.splitlines())) <= 80


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"kvsim {__version__}\n"


def test_unknown_command_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulat"]) == 2
    assert capsys.readouterr().err == "kvsim: unknown command 'simulat': did you mean simulate?\n"


def _raises(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("--rate is 0; it must be positive"), 2, "kvsim: --rate is 0; it must be positive\n"),
        (FileNotFoundError(2, "No such file or directory", "x.csv"), 2, "kvsim: x.csv: No such file or directory\n"),
        (KeyboardInterrupt(), 130, "kvsim: interrupted\n"),
        (typer.Exit(1), 1, ""),
    ],
)
def test_exit_codes(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    assert run(_raises(error)) == code
    assert capsys.readouterr() == ("", message)


def test_a_bug_is_no_input_error_and_debug_shows_it(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_raises(ZeroDivisionError("oops"))) == 70
    assert "ZeroDivisionError: oops" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        run(_raises(ZeroDivisionError("oops")), "--debug")


def test_usage_errors_are_one_sentence(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    def command(number: Annotated[int, typer.Option()] = 1) -> None:
        print(number)

    assert run(command, "--number", "7") == 0
    assert capsys.readouterr().out == "7\n"
    for args in (["--number", "many"], ["--nmber", "7"], ["left over"]):
        assert run(command, *args) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "kvsim probe --help" in error


def test_importing_kvsim_and_help_stay_light() -> None:
    code = (
        "import sys, kvsim, kvsim.cli; kvsim.cli.main(['--help']);"
        "heavy = {'torch', 'scipy', 'streamlit', 'altair', 'ray', 'numpy', 'polars', 'pydantic', 'rich', 'typer'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_quiet() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m kvsim --help | true"], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def helped(command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What `kvsim COMMAND --help` prints in a terminal of so many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli.main([*command.split(), "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["simulate", "compare", "plan", "sweep", "memory", "list", "trace convert",
                                     "validate serving"])  # fmt: skip
def test_help_cuts_no_option_in_80_columns(command: str, monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    text = helped(command, 80, monkeypatch, capsys)
    assert "--json" in text and max(map(len, text.splitlines())) <= 80
    assert re.findall(r"--\S*…", text) == []


def test_help_wraps_to_the_terminal_and_not_where_the_source_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = helped("validate memory", 400, monkeypatch, capsys)
    assert re.search(r"is used; the rest .* in the table\. Exit 1 where .* more than 8 %\.", text)
