"""Bugs planted in prefill, scoring and compaction: each gives a wrong answer on the CPU runner, without a sanitizer.

Copies in flight hold NaN until they are waited for, and threads run as far as the next barrier, one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kvsim_kernels import compact, prefill, score
from kvsim_kernels.build import CSRC
from kvsim_kernels.grid import moves
from kvsim_kernels.grid import prefill as prefill_grid
from kvsim_kernels.grid import score as score_grid

CPU = torch.device("cpu")


def planted(folder: Path, source: str, old: str, new: str) -> str:
    """A copy of a kernel's file with `old` replaced by `new`."""
    text = (CSRC / source).read_text()
    assert text.count(old) == 1, f"{old!r} is in {source} {text.count(old)} times"
    file = folder / source
    file.write_text(text.replace(old, new).replace('#include "', f'#include "{CSRC}/'))
    return str(file)


def prefill_error(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> float:
    kernel = prefill.flash_kernel
    source = planted(folder, "prefill_flash.cu", old, new)
    monkeypatch.setattr(prefill, "flash_kernel", lambda *asked: replace(kernel(*asked), source=source))
    return prefill_grid.error("flash", [70, 3], [90, 130], 1, 2, 64, torch.bfloat16, 16, CPU)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("copy_wait<0>();", "copy_wait<1>();", id="late wait"),
        pytest.param("        __syncthreads();", "        ", id="missing barrier"),
        pytest.param("if (t0 + KEYS > every) {", "if (t0 > every) {", id="diagonal tile not masked"),
    ],
)
def test_in_prefill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    assert not prefill_error(tmp_path, monkeypatch, old, new) <= 5e-3


def test_a_copy_without_a_bug_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefill_error(tmp_path, monkeypatch, "WARPS = 4;", "WARPS = 2 + 2;") <= 5e-3


def test_in_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = score.kernel
    source = planted(tmp_path, "score.cu", "if (row >= (t - before) * group)", "if (row > (t - before) * group)")
    monkeypatch.setattr(score, "kernel", lambda *asked: replace(kernel(*asked), source=source))
    assert score_grid.error([9], [70], 1, 2, 64, torch.bfloat16, 16, CPU) > 1e-4


def test_in_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compact.kernel
    source = planted(tmp_path, "compact.cu", "        __syncthreads();\n", "")
    monkeypatch.setattr(compact, "kernel", lambda *asked: replace(kernel(*asked), source=source))
    assert moves.compact_different("bf16", 64, 32, 16, 90, CPU) > 0
