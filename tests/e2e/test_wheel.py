"""The built wheel: what is in it, and that it runs where nothing else of ours is."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = "kvsim/_native/"
"""what hatch_build.py compiles, where a compiler is at hand"""
PACKAGES = {"kvsim": "kvsim", "kvsim_kernels": "kernels", "kvsim_calibration": "calibration", "kvsim_app": "app"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)], ROOT)
    (file,) = folder.glob("*.whl")
    return file


def test_it_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = {
        name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name and not name.startswith(NATIVE)
    }
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    expected = set()
    for package, folder in PACKAGES.items():
        prefix = package if folder == package else f"{folder}/{package}"
        expected |= {package + name[len(prefix) :] for name in tracked if name.startswith(f"{prefix}/")}
    assert names >= expected, f"missing: {sorted(expected - names)}"
    assert all(name.split("/")[0] in PACKAGES for name in names)
    assert not any(name.endswith((".pyc", ".tmp", ".so", ".cubin")) for name in names)
    assert wheel.stat().st_size < 10 << 20


def test_it_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    _run([sys.executable, "-m", "venv", str(tmp_path / "venv")], tmp_path)
    python = str(tmp_path / "venv" / "bin" / "python")
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    _run([python, "-m", "pip", "install", "--quiet", *pinned, str(wheel)], tmp_path)
    kvsim = str(tmp_path / "venv" / "bin" / "kvsim")
    arguments = ["--trace", "sample", "--model", "llama-3.1-8b", "--device", "h100-sxm", "--limit", "200", "--json"]
    answer = json.loads(_run([kvsim, "simulate", *arguments], tmp_path))
    assert answer["requests"]["completed"] > 0
    ask = "import kvsim, kvsim.native, sys; print('torch' in sys.modules, kvsim.native.up_to_date(), kvsim.__file__)"
    holds_native = any(name.startswith(NATIVE) for name in zipfile.ZipFile(wheel).namelist())
    assert _run([python, "-c", ask], tmp_path).startswith(f"False {holds_native} {tmp_path}")


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
