"""One replica under load: the app's answer is that of `kvsim plan`, and its curve is read back as it was computed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from kvsim_app import findings, load, tasks
from kvsim_app.load import Held

from kvsim.cost import Band
from kvsim.plan import Candidate, Objectives, plan
from kvsim.plan.answer import TOO_SHORT
from kvsim.scenario import Scenario, make

LIMITS = {"ttft_p99": 2.0, "tpot_p99": 0.1}
SLO = "ttft_p99=2000ms,tpot_p99=100ms"


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    base = make({"trace": "sample", "limit": 300, "model": "llama-3.1-8b", "device": "h100-sxm", "duration": "30s"})
    return load.scenarios(base, ["paged"])["paged"]


def test_limits_are_written_as_the_command_line_takes_them() -> None:
    assert load.slo(LIMITS) == SLO
    assert {o.name: o.limit_s for o in Objectives.parse(load.slo(LIMITS)).latency} == LIMITS


def test_the_rate_held_is_the_one_of_kvsim_plan(scenario: Scenario, tmp_path: Path) -> None:
    tasks.find_rate(scenario, tmp_path / "x.json", slo=SLO)
    one = load.held(tmp_path / "x.json")
    answer = plan(scenario, Objectives.parse(SLO), devices=["h100-sxm"], policies=["paged"], tps=[1])
    assert one.rate == answer.candidates[0].rate_per_replica and one.rate
    assert one.candidate.limit == answer.candidates[0].limit
    assert "ttft_p99" not in one.why
    (best,) = findings.answer([one], one.rate * 2.5, 3.0, Band(0.8, 1.25))[1]
    assert best["GPUs"] == 3 and best["headroom"] == pytest.approx(0.2)
    assert best["low"] == pytest.approx(one.rate * 0.8) and best["high"] == pytest.approx(one.rate * 1.25)
    assert best["cost"] == pytest.approx(3 * 3.0 / 3600 / (one.rate * 2.5 * one.tokens) * 1e6)


def test_a_curve_rises_past_the_rate_that_is_held(scenario: Scenario, tmp_path: Path) -> None:
    tasks.curve(scenario, tmp_path / "x.json", slo=SLO)
    found = load.points(tmp_path / "x.json", "paged", gpus=2)
    assert len(found) == len(tasks.AROUND)
    assert all(a.rate < b.rate for a, b in pairwise(found))
    first, last = found[0], found[-1]
    assert (first.ttft_p99 or 0) < LIMITS["ttft_p99"] < (last.ttft_p99 or 0)
    assert first.steady and first.goodput == pytest.approx(first.rate)
    assert first.per_gpu == (first.output_rate or 0) / 2 and first.tier == "imported"
    assert (last.goodput or 0) < last.rate


def test_findings_of_policies_that_hold_nothing_say_so() -> None:
    none = Held(Candidate("h100-sxm", 1, "uncached", reason="even at 0.1 requests/s ttft_p99 is 9 s"), 100.0, ())
    assert findings.load_curve([none]) == "No policy here meets the objectives at any rate."
    sentence, (row,) = findings.answer([none], 5.0, None, Band(0.8, 1.25))
    assert sentence.startswith("No policy") and row["GPUs"] is None and "TTFT p99" in row["why"]


def test_findings_of_a_trace_too_short_say_so_and_show_no_rate() -> None:
    few = Candidate("h100-sxm", 1, "paged", limit=TOO_SHORT, requests=20).without_rate("give a longer trace")
    short, out = Held(few, 100.0, ()), Held(Candidate("h100-sxm", 1, "uncached", reason="never"), 100.0, ())
    sentence, (row,) = findings.answer([short], 5.0, 1.0, Band(0.8, 1.25))
    assert sentence == findings.load_curve([short]) and sentence.startswith("No answer: 20 requests are too few")
    assert sentence.endswith("give a longer trace.") and row["limited by"] == TOO_SHORT
    assert [row[name] for name in ("GPUs", "rate held", "low", "high", "headroom", "cost")] == [None] * 6
    good = Held(Candidate("h100-sxm", 1, "paged-int8", rate_per_replica=2.0, limit="host"), 100.0, ())
    for others in ([out], [good], [good, out]):  # it may hold more than any of them
        said, rows = findings.answer([*others, short], 5.0, None, Band(0.8, 1.25))
        assert said == findings.load_curve([*others, short]) and rows[0]["policy"] == "paged"
        assert said.startswith("No answer: under **paged**, 20 requests are too few to load a replica")
