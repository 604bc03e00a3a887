"""vLLM's own scheduler, recorded: ours takes the same steps. The files in `vllm/` are our own recordings of it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from kvsim.validate.schedule import compare, read
from kvsim.validate.vllm_schedule import steps

OWN = sorted((Path(__file__).parent / "vllm").glob("*.json.gz"))


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_every_step_of_our_recordings(file: Path) -> None:
    result = compare(file)
    assert result.steps > 50
    assert result.identical == result.steps, result.first_difference


@pytest.mark.shared
def test_every_step_of_the_shared_recordings(shared: Path) -> None:
    files = [file for file in sorted((shared / "oracle").glob("*.json.gz")) if not file.name.startswith("sglang")]
    assert len(files) >= 16
    for file in files:
        result = compare(file)
        assert result.identical == result.steps, (file.name, result.first_difference)


def test_a_wrong_recording_is_seen() -> None:
    """The comparison can fail: one block more, or another order of running requests, is a difference."""
    recording = read(OWN[0])
    ours = steps(recording)
    changed = copy.deepcopy(recording)
    changed["limits"]["num_blocks"] -= 1
    assert steps(changed) != ours
