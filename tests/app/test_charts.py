"""Charts stay small however long the run is, and axes are labelled at round numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("altair")

from kvsim_app.charts import latency, memory, operations, timeline
from kvsim_app.charts import trace as traffic
from kvsim_app.charts.style import bytes_axis, log_axis, seconds_axis
from kvsim_app.load import capacities, points
from kvsim_app.steady import limit, steady

from kvsim.result import Result
from kvsim.scenario import make
from kvsim.setup import prepare
from kvsim.simulate import run
from kvsim.trace import load
from kvsim.units import GIB

REQUESTS = 20_000
TRACE = f"synth:chat?requests={REQUESTS}"
NEVER = {"ttft_p99": 1e-6, "tpot_p99": 1e-6}
ALWAYS = {"ttft_p99": 1e6, "tpot_p99": 1e6}


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


def test_rates_are_those_of_full_traffic(result: Result) -> None:
    """Conversations go on after the last has begun: those minutes are no part of the rate, nor of its latencies."""
    part = steady(result)
    arrivals = result.requests["arrival_ns"]
    assert part.window_s < arrivals.max() / 1e9  # type: ignore[operator]
    assert part.result.requests.height == (arrivals <= part.window_s * 1e9).sum() < REQUESTS
    assert part.rate == pytest.approx(part.result.requests.height / part.window_s)
    assert 0 < part.output_rate <= result.requests["output_tokens"].sum() / part.window_s


def test_a_limit_is_told_as_kvsim_plan_tells_it(result: Result) -> None:
    part = steady(result)
    setup = prepare(make({k: v for k, v in result.run["scenario"].items() if v is not None}))
    found = points({"contiguous × 1": part}, NEVER, 1)
    (none,) = capacities(found, NEVER, lambda _, missed: limit(part, setup, missed))
    assert none.rate == 0 and none.limit and "the next rate misses ttft_p99, tpot_p99" in none.why
    (held,) = capacities(found, ALWAYS, lambda _, missed: limit(part, setup, missed))
    assert held.beyond and held.rate == part.rate


def test_axes_are_labelled_at_round_numbers() -> None:
    assert bytes_axis("", 79.1 * GIB).to_dict()["values"] == [i * 10 * GIB for i in range(8)]
    assert seconds_axis("", [0.004, 90.0]).to_dict()["values"] == [0.01, 0.1, 1, 10]
    inside = log_axis("", [3.0, 40.0]).to_dict()["values"]
    assert inside and all(2.7 < value < 44.1 for value in inside)
