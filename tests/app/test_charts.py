"""Charts stay small however long the run is, and axes are labelled at round numbers."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

pytest.importorskip("altair")

from kvsim_app.charts import answer, timeline
from kvsim_app.charts import trace as traffic
from kvsim_app.overheard import Overheard

from kvsim.report.charts import latency, memory, operations
from kvsim.report.charts.style import bytes_axis, log_axis, seconds_axis
from kvsim.report.svg import svg
from kvsim.result import Result
from kvsim.scenario import make
from kvsim.setup import prepare
from kvsim.simulate import results, trace_of
from kvsim.trace import load
from kvsim.units import GIB

REQUESTS = 20_000
TRACE = f"synth:chat?requests={REQUESTS}"


@pytest.fixture(scope="module")
def run() -> tuple[Result, pl.DataFrame]:
    """The run, and what was overheard of it."""
    setup = prepare(make({"trace": TRACE, "rate": 12.0, "model": "llama-3.1-8b", "device": "h100-sxm",
                          "policy": "contiguous", "max_model_len": 16384, "interval": False}))  # fmt: skip
    heard = Overheard()
    (result,) = results(trace_of(setup.scenario), heard.of(setup))
    return result, heard.table(result)


def test_a_run_of_20_000_requests_sends_less_than_2_mb_a_chart(run: tuple[Result, pl.DataFrame]) -> None:
    result, events = run
    at = memory.moments(result)[1]
    runs = {"a": result, "b": result}
    rates = operations.rates(result)
    charts: dict[str, Any] = {
        "over time": memory.over_time(result), "address map": memory.address_map(result, at),
        "block grid": memory.block_grid(result, at), "gantt": timeline.gantt(result, events, REQUESTS // 2),
        "rates": operations.panel(rates, list(rates.values), "tokens/s"), "bars": memory.bars(runs),
        **{metric: operations.quantiles(result, metric) for metric in ("ttft", "tpot", "e2e", "queue")},
        **{f"{metric} cdf": latency.cdf(runs, metric) for metric in latency.METRICS},
        "lengths": traffic.lengths(load(TRACE)), "arrivals": traffic.arrivals(load(TRACE)),
        "both": traffic.prompts_and_answers(load(TRACE)),
    }  # fmt: skip
    sizes = {name: len(json.dumps(chart.to_dict())) for name, chart in charts.items()}
    assert result.requests.height == REQUESTS
    assert max(sizes.values()) < 2_000_000, sizes


def test_axes_are_labelled_at_round_numbers() -> None:
    assert bytes_axis("", 79.1 * GIB).to_dict()["values"] == [i * 10 * GIB for i in range(8)]
    assert seconds_axis("", [0.004, 90.0]).to_dict()["values"] == [0.01, 0.1, 1, 10]
    inside = log_axis("", [3.0, 40.0]).to_dict()["values"]
    assert inside and all(2.7 < value < 44.1 for value in inside)


def test_many_chunks_of_a_prefill_are_drawn_as_one_span(run: tuple[Result, pl.DataFrame]) -> None:
    """Where spans are too many to be drawn one by one, neighbours of a phase are joined and none is lost."""
    shown = timeline.spans(*run, first=0, rows=50)
    cut = shown.with_columns(part=pl.lit(1)).filter(pl.col("phase") == "prefill")
    halves = pl.concat([
        cut.with_columns(end_s=(pl.col("start_s") + pl.col("end_s")) / 2),
        cut.with_columns(start_s=(pl.col("start_s") + pl.col("end_s")) / 2, tokens=pl.lit(0, pl.Int64)),
    ]).sort("row", "start_s")  # fmt: skip
    whole = timeline.joined(halves)
    assert whole.height == cut["row"].n_unique() < halves.height
    assert (whole["end_s"] - whole["start_s"]).sum() == pytest.approx((cut["end_s"] - cut["start_s"]).sum())
    assert whole["tokens"].sum() == cut["tokens"].sum()


def test_the_gpus_of_an_answer_stand_clear_of_the_capped_interval() -> None:
    rows = [{"policy": "paged", "GPUs": 12_000, "rate held": 2.0, "low": 1.6, "high": 2.5, "limited by": "host"},
            {"policy": "uncached", "GPUs": None, "rate held": None, "low": None, "high": None, "limited by": None},
            {"policy": "h2o", "GPUs": None, "rate held": None, "low": None, "high": None,
             "limited by": "trace too short"}]  # fmt: skip
    root = ElementTree.fromstring(svg(answer.held(rows, ["paged", "uncached", "h2o"]), "held", width=700))
    at = {text.text: float(re.search(r"translate\(([-\d.]+)", text.get("transform", ""))[1])  # type: ignore[index]
          for text in root.iter("text") if text.get("text-anchor") == "start"}  # fmt: skip
    assert set(at) == {"12,000 GPUs", "no rate", "trace too short"}
    (rule,) = (line for line in root.iter("line") if line.get("stroke-width") == "2")
    left = float(re.search(r"translate\(([-\d.]+)", rule.get("transform", ""))[1])  # type: ignore[index]
    right = left + float(rule.get("x2", 0))
    assert at["12,000 GPUs"] >= right + 10 and right > left + 50
    caps = [path.get("d", "") for path in root.iter("path") if path.get("fill") == "var(--soft)"]
    assert sum(d.count("M") for d in caps) == 2, "a cap at both ends, of the one that has an interval"
