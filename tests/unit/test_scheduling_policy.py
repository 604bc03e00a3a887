"""`--scheduling-policy` and `--long-prefill-token-threshold`: vLLM's flags of these names, and who refuses them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from kvsim.errors import InputError
from kvsim.result import Result
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """60 requests at once for a pool that holds a few; every other one is urgent."""
    file = tmp_path / "mixed.csv"
    rows = [f"{row / 1000},{600 + 13 * row % 400},80,{1 - row % 2}" for row in range(60)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,priority", *rows]) + "\n")
    return file


def simulated(trace: Path, **how: object) -> Result:
    return run(Scenario.model_validate({
        "trace": str(trace), "model": "llama-3.1-8b", "device": "l40s", "policy": "paged", "max_num_seqs": 8,
        "interval": False, **how}))  # fmt: skip


def first_tokens(result: Result) -> tuple[float, float]:
    """Mean TTFT of urgent and other requests, s."""
    columns = pl.from_dict({"urgent": [row % 2 == 1 for row in range(60)]}).hstack(
        [(result.requests["first_token_ns"] - result.requests["arrival_ns"]).alias("ttft")])
    means = columns.group_by("urgent").agg(pl.col("ttft").mean() / 1e9).sort("urgent")["ttft"]
    return means[1], means[0]


def test_urgent_requests_go_first_where_priorities_are_asked_for(trace: Path) -> None:
    plain, urgent = simulated(trace), simulated(trace, scheduling_policy="priority")
    first, rest = first_tokens(urgent)
    assert first < 0.75 * rest
    first, rest = first_tokens(plain)
    assert first == pytest.approx(rest, rel=0.1)
    assert any("--scheduling-policy" in note for note in plain.run["notes"]) and not urgent.run["notes"]


def test_strides_under_priorities_are_those_of_single_steps(trace: Path) -> None:
    by_strides, by_steps = (simulated(trace, scheduling_policy="priority", max_stride=stride) for stride in (None, 1))
    assert by_strides.requests.equals(by_steps.requests)


def test_a_threshold_bounds_the_chunks_of_a_prompt(trace: Path) -> None:
    setup = prepare(Scenario(trace="sample", model="llama-3.1-8b", device="l40s", long_prefill_token_threshold=128))
    assert setup.limits.chunk == 128
    chunked, whole = simulated(trace, long_prefill_token_threshold=128), simulated(trace)
    assert first_tokens(chunked) != first_tokens(whole)


@pytest.mark.parametrize("asked", [{"scheduling_policy": "priority"}, {"long_prefill_token_threshold": 128}])
@pytest.mark.parametrize("engine", ["sglang", "trtllm", "vllm-0"])
def test_engines_without_such_an_option_refuse_it(asked: dict[str, object], engine: str) -> None:
    scenario = Scenario(trace="sample", model="llama-3.1-8b", device="l40s", engine=engine)
    prepare(scenario)
    with pytest.raises(InputError, match=r"has no such option; --engine vllm-1 has"):
        prepare(scenario.replace(**asked))


@pytest.mark.parametrize("asked", [{"scheduling_policy": "priority"}, {"long_prefill_token_threshold": 128}])
def test_a_scheduler_that_would_pass_it_over_refuses_it(asked: dict[str, object]) -> None:
    scenario = Scenario(trace="sample", model="llama-3.1-8b", device="l40s", policy="radix", scheduler="sglang")
    prepare(scenario)
    with pytest.raises(InputError, match="--scheduler sglang has no such option"):
        prepare(scenario.replace(**asked))


def test_what_retention_has_cut_is_not_swapped() -> None:
    scenario = Scenario(trace="sample", model="llama-3.1-8b", device="l40s", policy="streaming")
    with pytest.raises(InputError, match="not modelled: use on-pressure recompute"):
        prepare(scenario.replace(tier="host:8GiB", on_pressure="swap"))
