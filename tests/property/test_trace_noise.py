"""Damaged files: whatever is broken in a small file of any format, the answer is a Trace or one sentence."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.trace import load

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
NAMES = sorted(path.name for path in DATA.iterdir())
NOISE = [b"", b"-1", b"nan", b"null", b"[]", b"{}", b'"x"', b",", b"1e300", b"99999999999999999999", b"\n", b"\r",
         b"\xff", b'"', b"true", b"0", b"\x00", b"1.5", b"[[1]]", b":"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_noise(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    for _ in range(60):
        place = tmp_path / name
        shutil.rmtree(place, ignore_errors=True)
        if (DATA / name).is_dir():
            shutil.copytree(DATA / name, place)
        else:
            shutil.copy(DATA / name, place)
        files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
        file = rng.choice(files)
        content = file.read_bytes()
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(content) + 1)
            content = content[:at] + rng.choice(NOISE) + content[at + rng.choice([0, 1, 1, 2, 5, 20]) :]
        file.write_bytes(content)
        try:
            trace = load(place, untimed="poisson:1")
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert (trace.prompt_tokens > 0).all() and (trace.parent < range(len(trace))).all()
