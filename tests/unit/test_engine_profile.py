"""Engine profiles: what they state, their versions, and the limits they set."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.cache.policies import POLICIES
from kvsim.engine_profile import engine_names, load_engine
from kvsim.errors import InputError
from kvsim.sched import SCHEDULERS
from kvsim.units import GIB


def test_the_promised_engines_are_there() -> None:
    assert engine_names()[0] == "vllm-1"
    names = {"vllm-1", "vllm-0", "sglang", "trtllm", "trtllm-max-util", "lmdeploy", "orca", "static", "reference"}
    assert set(engine_names()) == names


@pytest.mark.parametrize("name", engine_names())
def test_every_profile_can_run_and_says_where_it_comes_from(name: str) -> None:
    profile = load_engine(name)
    assert profile.scheduler in SCHEDULERS
    assert profile.policy in POLICIES
    assert profile.version
    assert profile.sources
    for part in (profile.limits, profile.memory, profile.host):
        assert part.source
    assert "max_num_seqs" in profile.options


@pytest.mark.parametrize(
    ("engine", "device", "gib", "length", "expected"),
    [
        ("vllm-1", "h100-sxm", 79, 8192, (1024, 8192)),
        ("vllm-1", "a100-80-sxm", 79, 8192, (256, 2048)),  # vLLM leaves A100 out by name
        ("vllm-1", "rtx-4090", 24, 8192, (256, 2048)),
        ("vllm-0@0.6.4", "h100-sxm", 79, 20000, (256, 20000)),  # whole prompts: a step takes the longest
        ("vllm-0@0.6.4", "h100-sxm", 79, 131072, (256, 2048)),  # chunked from 32k on
        ("vllm-0@0.2", "a100-80-sxm", 79, 1024, (256, 2560)),
        ("sglang", "h100-sxm", 79, 8192, (256, 8192)),
        ("sglang", "l40s", 44, 8192, (256, 4096)),
    ],
)
def test_default_limits(engine: str, device: str, gib: int, length: int, expected: tuple[int, int]) -> None:
    assert load_engine(engine).limits_for(gib * GIB, device, length) == expected


def test_the_users_limits_go_first() -> None:
    assert load_engine("vllm-1").limits_for(79 * GIB, "h100-sxm", max_num_seqs=7) == (7, 8192)
    assert load_engine("vllm-1").limits_for(79 * GIB, "h100-sxm", max_num_batched_tokens=99) == (1024, 99)


def test_versions_override_constants() -> None:
    old, new = load_engine("vllm-1@0.19.1"), load_engine("vllm-1@0.32")
    assert (old.memory.share, new.memory.share) == (0.9, 0.92)
    assert (old.memory.graphs_in_budget, new.memory.graphs_in_budget) == (False, True)
    assert old.limits == new.limits
    assert load_engine("lmdeploy@0.1.0").memory.base == "total"
    assert load_engine("lmdeploy@0.2.1").memory.base == "total"
    assert load_engine("lmdeploy").memory.base == load_engine("lmdeploy@0.2.2").memory.base == "after_weights"
    assert load_engine("trtllm@0.7.1").repeated_reads > 0 == load_engine("trtllm@0.8").repeated_reads


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm-1", "unknown engine 'vlm-1': did you mean vllm-1"),
        ("vllm-1@x", "engine version 'x' is not understood"),
        ("vllm-1@-1", "engine version '-1' is not understood"),
        ("orca@2", "has one version only"),
        ("missing.toml", "can't be read"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_engine(name)


def test_an_engine_of_ones_own(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "kvsim" / "data" / "engines" / "vllm-1.toml"
    path = tmp_path / "mine.toml"
    path.write_text(source.read_text().replace("share = 0.9\n", "share = 0.8\n"))
    assert load_engine(str(path)).memory.share == 0.8
    path.write_text(source.read_text().replace("share = 0.9\n", "share = 1.9\n"))
    with pytest.raises(InputError, match=r"memory\.share: Input should be less than or equal to 1"):
        load_engine(str(path))


def test_a_driver_process_feeds_its_workers() -> None:
    """vLLM 0.2 on H100: 7 ms a step at TP 2, 19 at TP 8, beside the GPU's own time (Splitwise's profile)."""
    host = load_engine("vllm-0@0.2").host
    assert host.exposed_with(2) + host.exposed_per_sequence_ns == pytest.approx(7.4e6, rel=0.1)
    assert host.exposed_with(8) + host.exposed_per_sequence_ns == pytest.approx(19.3e6, rel=0.1)
    assert load_engine("vllm-1").host.exposed_with(8) == load_engine("vllm-1").host.exposed_ns
