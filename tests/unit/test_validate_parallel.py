"""Every published case of a pipeline, of shared experts or of data parallelism is predicted, or says what it lacks.

There are few: one start-up log with two stages, one decode step and one measured run with shared experts. No figure of
a pipeline's speed is published in ../shared/measured, and none of an all-to-all over more than one host.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from kvsim.validate.memory import validate_memory
from kvsim.validate.serving import validate_cases
from kvsim.validate.serving_runs import validate_runs
from kvsim.validate.step import validate_step

PIPELINE, EXPERTS = "mem-050", "thr-168"
NO_LENGTHS = {"thr-112", "thr-113", "lat-071", "lat-072", "thr-115", "lat-073", "thr-116", "thr-121", "thr-128"}
OVERLAPPED = "thr-164"
pytestmark = pytest.mark.shared


@pytest.fixture(scope="module")
def cases(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of ../shared/measured that can be checked and have more than tensor parallelism."""
    texts = (shared / "measured" / "cases.jsonl").read_text().splitlines()
    found = [case for case in map(json.loads, texts)
             if case["checkable"] and any((case[degree] or 1) > 1 for degree in ("pp", "ep", "dp"))]
    assert {case["id"] for case in found} == {PIPELINE, EXPERTS, OVERLAPPED, *NO_LENGTHS}
    file = tmp_path_factory.mktemp("cases") / "parallel.jsonl"
    file.write_text("\n".join(map(json.dumps, found)))
    return file


def test_a_pipelines_pool_of_memory(cases: Path) -> None:
    (row,) = validate_memory(cases).rows
    assert (row.id, row.split) == (PIPELINE, "PP 2") and row.inside and abs(row.error) <= 0.01


def test_a_decode_step_of_four_gpus_that_share_experts(cases: Path) -> None:
    """An H20 has no measured kernels: its interval is wide, and has to hold the figure."""
    report = validate_step(cases)
    (row,) = report.rows
    assert (row.id, row.split) == (EXPERTS, "DP 4 EP 4") and row.inside and abs(row.error) <= 0.35
    (why,) = report.skipped
    assert "all-to-all" in why and report.skipped[why] == 1  # two overlapping micro-batches: not modelled


def test_nine_figures_of_data_parallelism_do_not_say_how_long_their_prompts_were(cases: Path) -> None:
    report = validate_cases(cases)
    assert report.rows == [] and sum(report.skipped.values()) == len(NO_LENGTHS)
    assert all("prompt lengths" in why for why in report.skipped)


def test_a_measured_run_of_two_gpus_that_share_experts(shared: Path, tmp_path: Path) -> None:
    name = "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507"
    with tarfile.open(shared / "traces" / "measured_vllm_dev.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")  # the run, and beside it the prompts that were sent
    report = validate_runs(tmp_path / name)
    assert {row.split for row in report.rows} == {"DP 2 EP 2"} and len(report.rows) >= 6
    assert report.goals and report.missed() == []  # those of every measured run
