"""What is overheard from the scheduler agrees with the Result of the same run, to the nanosecond."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

pytest.importorskip("altair")

from kvsim_app.overheard import EVENTS, Overheard
from kvsim_app.phases import phases

from kvsim.result import Result
from kvsim.scenario import make
from kvsim.setup import prepare
from kvsim.simulate import results, run, trace_of

TIGHT = {"trace": "synth:chat?requests=300", "rate": 8.0, "model": "llama-3.1-8b", "device": "l4",
         "max_model_len": 8192, "gpu_memory_utilization": 0.81, "interval": False}  # fmt: skip
CASES = {
    "paged": {"policy": "paged"},
    "prefix": {"policy": "paged-prefix"},
    "offload": {"policy": "paged-offload"},
    "swap": {"policy": "paged", "on_pressure": "swap", "tier": "host:8GiB"},
    "small chunks": {"policy": "paged", "max_num_batched_tokens": 256},
    "uncached": {"policy": "uncached", "trace": "synth:chat?requests=40"},
    "static": {"policy": "paged", "scheduler": "static"},
    "prefill first": {"policy": "paged", "scheduler": "prefill-first"},
    "synchronous engine": {"policy": "paged", "engine": "vllm-1@0.9"},
    "step by step": {"policy": "paged", "max_stride": 1},
    "sglang": {"engine": "sglang", "policy": "radix"},
}
OVERHEARD = [case for case in CASES if case != "sglang"]


@cache
def overhear(case: str) -> tuple[Result, pl.DataFrame]:
    setup = prepare(make(TIGHT | CASES[case]))
    heard = Overheard()
    (result,) = results(trace_of(setup.scenario), heard.of(setup))
    return result, heard.table(result)


@pytest.mark.parametrize("case", OVERHEARD)
def test_events_agree_with_the_result(case: str) -> None:
    result, events = overhear(case)
    done = result.requests.filter(pl.col("status") == "completed")
    assert done.height
    kinds = {name: events.filter(pl.col("event") == number) for number, name in enumerate(EVENTS)}
    chunks = pl.concat([kinds["chunk"], kinds["prompt end"]])
    again = pl.col("row").is_duplicated() & ~pl.col("row").is_first_distinct()
    # a request that comes back and finds all but one token cached computes that one as a decode would
    single = kinds["prompt end"].filter(again & (pl.col("tokens") == 1)).height
    if case != "uncached":  # where decodes that a full step plans one by one are counted as prefill
        assert chunks["tokens"].sum() - single == result.run["counters"]["prefill"]
    taken = pl.concat([kinds["preempted"], kinds["swapped"]]).group_by("row").len("taken")
    both = done.join(taken, left_on="id", right_on="row", how="left").with_columns(pl.col("taken").fill_null(0))
    assert (both["taken"] == both["preemptions"]).all()
    first = events.group_by("row", maintain_order=True).first()
    begun = done.join(first, left_on="id", right_on="row")
    assert begun.height and (begun["start_ns"] == begun["scheduled_ns"]).all()
    input_done = kinds["prompt end"].group_by("row", maintain_order=True).first()
    later = done.join(input_done, left_on="id", right_on="row").filter(pl.col("first_token_ns").is_not_null())
    assert later.height and (later["end_ns"] == later["first_token_ns"]).all()


def test_nothing_changes_by_listening() -> None:
    result, _ = overhear("swap")
    alone = run(make(TIGHT | CASES["swap"]))
    assert alone.requests.equals(result.requests) and alone.steps.equals(result.steps)


@pytest.mark.parametrize("case", OVERHEARD)
def test_phases_fill_a_request_from_arrival_to_last_token(case: str) -> None:
    result, events = overhear(case)
    done = result.requests.filter(pl.col("status") == "completed")
    spans = phases(done, events).join(done.select("id", "arrival_ns", "last_token_ns"), on="id")
    known = pl.col("arrival_ns", "last_token_ns").first()
    ends = spans.group_by("id").agg(pl.col("start_ns").min(), pl.col("end_ns").max(), known)
    assert (ends["start_ns"] == ends["arrival_ns"]).all() and (ends["end_ns"] == ends["last_token_ns"]).all()
    follows = spans.with_columns(before=pl.col("end_ns").shift(1).over("id"))
    assert follows.filter(pl.col("start_ns") < pl.col("before")).is_empty()  # one thing at a time


def test_a_run_that_swaps_shows_it() -> None:
    result, events = overhear("swap")
    done = result.requests.filter(pl.col("status") == "completed")
    shown = set(phases(done, events)["phase"])
    assert shown == {"queued", "prefill", "decode", "swapped", "loading"}
    assert "preempted" in set(phases(done, overhear("paged")[1])["phase"])


def test_without_events_a_request_has_three_phases() -> None:
    result, events = overhear("sglang")
    assert events.is_empty()
    done = result.requests.filter(pl.col("status") == "completed")
    plain = phases(done)
    assert set(plain["phase"]) == {"queued", "prefill", "decode"}
    assert plain.equals(phases(done, events))
