"""Charts stay small however long the run is, and axes are labelled at round numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("altair")

from kvsim_app.charts import latency, memory, operations, timeline
from kvsim_app.charts import trace as traffic
from kvsim_app.charts.style import bytes_axis, log_axis, seconds_axis

from kvsim.result import Result
from kvsim.scenario import make
from kvsim.simulate import run
from kvsim.trace import load
from kvsim.units import GIB

REQUESTS = 20_000
TRACE = f"synth:chat?requests={REQUESTS}"


@pytest.fixture(scope="module")
def result() -> Result:
    return run(make({"trace": TRACE, "rate": 12.0, "model": "llama-3.1-8b", "device": "h100-sxm",
                     "policy": "contiguous", "max_model_len": 16384, "interval": False}))  # fmt: skip


def test_a_run_of_20_000_requests_sends_less_than_2_mb_a_chart(result: Result) -> None:
    at = memory.moments(result)[1]
    runs = {"a": result, "b": result}
    time, rates = operations.rates(result)
    charts: dict[str, Any] = {
        "over time": memory.over_time(result), "address map": memory.address_map(result, at),
        "block grid": memory.block_grid(result, at), "gantt": timeline.gantt(result, None, REQUESTS // 2),
        "rates": operations.panel(time, rates, "tokens/s"), "bars": memory.bars(runs),
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
