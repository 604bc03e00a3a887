"""What policies cost in answers, as the app quotes it, is what was measured."""

from __future__ import annotations

import pytest

pytest.importorskip("altair")

from kvsim_app import quality
from kvsim_app.charts.quality import perplexity

from kvsim.accuracy import accuracy_table
from kvsim.cache.policies import POLICIES
from kvsim.report.quality import change


def test_a_policy_is_quoted_at_its_own_budget() -> None:
    rows = {row["policy"]: row for row in accuracy_table()["results"]}
    for name, budget in (("h2o", 1024), ("streaming", 1024), ("snapkv", 1024)):
        (found,) = quality.of_policy(name, POLICIES.get(name).facts())
        same = [row for row in rows.values() if row["budget"] == budget and row["perplexity_change"] == found.change]
        assert len(same) == 1 and found.low <= found.change <= found.high
    other = POLICIES.get("h2o").override(retention="heavy_hitter:budget=700,recent=100")
    assert [row.label for row in quality.of_policy("h2o", other.facts())] == ["h2o 1024", "h2o 512", "h2o 256"]


def test_kinds_are_precisions_of_a_full_cache_or_retentions_of_a_16_bit_one() -> None:
    assert [row.label for row in quality.of_kind("fp8", "int8", "int4")] == ["fp8", "int8", "int4"]
    assert [row.label for row in quality.of_kind("streaming")] == ["4 sinks + 1020", "4 sinks + 508", "4 sinks + 252"]
    assert quality.of_kind("bf16") == []


def test_a_caption_says_which_fp8_it_is_and_what_a_stream_costs() -> None:
    rows = {row["policy"]: row for row in accuracy_table()["results"]}
    plain, said = quality.source("int8"), quality.source("fp8", "int8")
    assert "basis" not in plain and said.startswith(plain)
    assert "as servers store it" in said and change(rows["fp8-head-basis"]["perplexity_change"]) in said
    policies = [POLICIES.get(name).facts() for name in ("streaming", "paged-fp8")]
    assert quality.kinds(policies) == ["auto", "streaming", "fp8", "full"]
    streams = [row for row in accuracy_table()["streams"] if "sinks=4" in row["retention"] and row["context"] == 8192]
    assert streams and all(change(row["perplexity_change"]) in quality.source("streaming") for row in streams)


def test_the_chart_draws_every_interval_and_names_the_model() -> None:
    rows = quality.of_kind("int8", "int4")
    drawn = perplexity(rows, ["int8", "int4"]).to_dict()
    values = next(data for data in drawn["datasets"].values() if "low" in data[0])
    assert [(v["low"], v["high"]) for v in values] == [(row.low, row.high) for row in rows]
    assert accuracy_table()["model"] in quality.source() and "No promise" in quality.source()
