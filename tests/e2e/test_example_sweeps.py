"""The example sweeps run to their end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("sweep*.toml")), ids=lambda path: path.name)
def test_sweep(file: Path, tmp_path: Path) -> None:
    where = ["--out", str(tmp_path / "out"), "--jobs", "2"]
    command = [sys.executable, "-m", "kvsim", "sweep", str(file), *where, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["failed"] == {}
