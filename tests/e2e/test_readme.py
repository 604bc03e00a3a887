"""The README says what the commands do: its demo is what `make demo` prints, its commands and links exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_demo_prints_what_the_readme_shows() -> None:
    if not (ROOT / ".venv/bin/kvsim").exists():
        pytest.skip("make demo would install into .venv, which is not there")
    script = [sys.executable, str(ROOT / "docs/readme.py"), "--check"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", sorted(set(re.findall(r"(?:`|^)kvsim ([a-z][^`\n]*)", README, re.MULTILINE))))
def test_its_flags_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    name = [word for word in words[:2] if word.isalpha() and word in (*cli._COMMANDS, "info", "synth", "convert")]
    assert cli.main([*name, "--help"]) == 0
    text = capsys.readouterr().out
    for word in words:
        if word.startswith("--"):
            assert word in text, f"kvsim {' '.join(name)} has no {word}"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
