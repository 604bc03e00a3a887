"""The examples run as their first lines say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_script(script: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1


SCENARIOS = sorted(set(EXAMPLES.glob("*.toml")) - set(EXAMPLES.glob("sweep*")))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name)
def test_scenario(scenario: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvsim", "simulate", "--scenario", str(scenario)]
    short = ["--set", "limit=100", "--set", "interval=false", "--json"]
    done = subprocess.run([*command, *short], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"]["total"] == 100
