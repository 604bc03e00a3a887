"""kvsim measure against a small server on loopback that streams with known delays."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FIRST_S, GAP_S, Fake
from kvsim_calibration.measure.client import Load, Measurement, served_model
from kvsim_calibration.measure.http import Server
from kvsim_calibration.measure.prompts import LOW, text, token_ids
from rich.console import Console

from kvsim import cli
from kvsim.errors import InputError
from kvsim.report.terminal import overview
from kvsim.result import Result
from kvsim.trace import Trace
from kvsim.trace.types import make_trace


def measured(fake: Fake, trace: Trace, *, stop_after: float | None = None, **load: Any) -> Result:
    """The Result of `trace` against the fake server."""

    async def go() -> Result:
        server = await asyncio.start_server(fake, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        work = Measurement(Server(f"http://127.0.0.1:{port}/v1"), Load("tiny", **({"warmup": 0} | load)), trace)
        stop = asyncio.Event()
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, stop.set)
        await work.run(stop)
        server.close()
        return work.result({"provenance": {"device": "fake", "tier": "measured"}, "scenario": {}})

    return asyncio.run(go())


def trace_of(arrival_s: list[float], prompt: int = 20, output: int = 4, **columns: Any) -> Trace:
    n = len(arrival_s)
    return make_trace("t", "synthetic", [int(s * 1e9) for s in arrival_s], [prompt] * n, [output] * n, **columns)


def test_delays_are_found_and_usage_recorded() -> None:
    fake = Fake()
    result = measured(fake, trace_of([0.0, 0.1]), warmup=1)
    latency = result.latency
    assert latency["ttft"]["p50"] == pytest.approx(FIRST_S, abs=0.04)
    assert latency["itl"]["mean"] == pytest.approx(GAP_S, abs=0.015)
    assert result.requests["cached_tokens"].to_list() == [7, 7]
    assert result.summary["requests"]["completed"] == 2
    assert len(fake.bodies) == 3  # the warm-up is not recorded
    assert fake.bodies[1]["max_tokens"] == 4 and len(fake.bodies[1]["prompt"]) == 20


def test_arrivals_do_not_wait_for_answers() -> None:
    """Open loop: four requests at once run together, though each takes 0.2 s."""
    fake = Fake(first_s=0.2)
    measured(fake, trace_of([0.0] * 4))
    assert fake.most == 4


def test_a_cap_holds_requests_back_and_the_wait_counts() -> None:
    fake = Fake(first_s=0.2)
    result = measured(fake, trace_of([0.0] * 3, output=1), concurrency=1)
    assert fake.most == 1
    ttft = sorted((row["first_token_ns"] - row["arrival_ns"]) / 1e9 for row in result.requests.to_dicts())
    assert ttft[2] > 0.55


def test_follow_ups_come_after_their_parents() -> None:
    trace = trace_of([0.0, 0.0], output=2, parent=[-1, 0], after_parent_ns=[0, 50_000_000])
    rows = measured(Fake(), trace).requests.to_dicts()
    assert rows[1]["arrival_ns"] == rows[0]["last_token_ns"] + 50_000_000


def test_failures_are_recorded_with_their_reason() -> None:
    trace = trace_of([0.0, 0.0], parent=[-1, 0])
    rows = measured(Fake(status=503), trace).requests.to_dicts()
    assert [(row["status"], row["reason"]) for row in rows] == [("failed", "HTTP 503"), ("refused", "parent_refused")]
    (row,) = measured(Fake(silent=True), trace_of([0.0]), timeout_s=0.2).requests.to_dicts()
    assert (row["status"], row["reason"]) == ("failed", "timeout")
    (row,) = measured(Fake(), trace_of([0.0]), max_model_len=10).requests.to_dicts()
    assert (row["status"], row["reason"]) == ("refused", "too_long")


@pytest.mark.parametrize("ends", ["vllm", "llama.cpp"])
def test_tokens_that_are_no_text_yet_keep_their_times(ends: str) -> None:
    """Part of a character: vLLM sends the token without text, be it the last. llama.cpp ends with one more event."""
    result = measured(Fake(ends=ends, empty=(1, 3) if ends == "vllm" else ()), trace_of([0.0], output=4))
    assert result.latency["tpot"]["mean"] > 0.9 * GAP_S  # without the last token two gaps would count as three
    assert result.itl["count"].sum() == (2 if ends == "vllm" else 3)  # the last event is a token's or not: no gap


def test_a_server_that_dies_in_the_middle_is_a_failure() -> None:
    """Its stream ends without the last chunk: what came is no answer, however many tokens it has."""
    (row,) = measured(Fake(dies_after=2), trace_of([0.0])).requests.to_dicts()
    assert (row["status"], row["reason"]) == ("failed", "the connection was closed")


def test_what_the_server_said_is_noted() -> None:
    notes = measured(Fake(status=400), trace_of([0.0, 0.0])).run["notes"]
    assert notes == ["HTTP 400: the server said 'busy'"]


def test_an_interrupt_keeps_what_was_done(tmp_path: Path) -> None:
    result = measured(Fake(), trace_of([0.0, 0.3, 60.0]), stop_after=0.4)
    assert result.requests["status"].to_list() == ["completed", "failed"]
    assert result.requests["reason"].to_list() == [None, "interrupted"]
    assert any("1 of 3 requests were not sent" in note for note in result.run["notes"])
    result.save(tmp_path / "run")
    assert Result.load(tmp_path / "run").summary["requests"]["completed"] == 1


def test_compare_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two folders side by side, as a table and as JSON; what a server doesn't tell is null or a dash."""
    result = measured(Fake(first_s=0.01), trace_of([0.0], output=2))
    for name in ("a", "b"):
        result.save(tmp_path / name)
    folders = [str(tmp_path / name) for name in ("a", "b")]
    assert cli.main(["compare", *folders]) == 0
    assert "a" in capsys.readouterr().out
    assert cli.main(["compare", *folders, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs["a"]["latency_s"] == runs["b"]["latency_s"]
    assert runs["a"]["memory"]["kv_capacity_bytes"] is None


def test_a_server_is_no_device_profile() -> None:
    run = {"provenance": {"model": "m", "device": "d", "tier": "measured", "run": "a server at http://x"}}
    result = measured(Fake(first_s=0.01), trace_of([0.0], output=2))
    result.run.update(run)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(overview(result))
    said = console.export_text()
    assert "Measured: a run of a server at http://x, no prediction." in said
    assert "steps" not in said and "preemptions" not in said  # a client does not know them


def test_prompts_share_what_the_trace_shares() -> None:
    trace = make_trace("t", "synthetic", [0, 0], [40, 50], [1, 1], block_size=16, block_rule="floor",
                       block_ids=np.array([0, 1, 0, 2]), block_start=np.array([0, 2, 4]))  # fmt: skip
    one, two = (token_ids(trace, row, 32_000) for row in range(2))
    assert len(one) == 40 and len(two) == 50
    assert (one[:16] == two[:16]).all()
    assert not (one[16:32] == two[16:32]).all()
    assert one.min() >= LOW and one.max() < 32_000
    assert len(text(one).split()) == 40


def test_no_server_is_one_sentence() -> None:
    unused: Callable[[], Awaitable[str]] = lambda: served_model(Server("http://127.0.0.1:9"))  # noqa: E731
    with pytest.raises(InputError, match="no OpenAI-compatible server answers"):
        asyncio.run(unused())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="write it like"):
        Server("127.0.0.1:8000")
