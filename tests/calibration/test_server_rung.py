"""kvsim validate server: an engine's constants are found again; a report of what was predicted and what came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from fake_server import Fake
from kvsim_calibration.engine.constants import Timed, errors, fitted, words
from kvsim_calibration.engine.steps import Step
from kvsim_calibration.measure import probe
from kvsim_calibration.measure.client import Load
from kvsim_calibration.measure.http import Server
from kvsim_calibration.measure.rung import METRICS, Asked

from kvsim.cost import CostModel, HostOverhead
from kvsim.device import load_device
from kvsim.errors import InputError
from kvsim.model import load_model
from kvsim.result import Result
from kvsim.scenario import Scenario

STEPS = [(Step((400,) * n),) for n in (1, 4, 16, 48)] + [tuple(probe.chunked(n, 512)) for n in (60, 300, 900, 1500)]
SCENARIO = Scenario(
    trace="synth:chat?requests=4&rate=20&prompt=30&message=30&output=4&turns=1&system_tokens=0", model="smollm2-135m",
    device="l4", max_model_len=2048,
)


def cost(host: HostOverhead | None = None) -> CostModel:
    return CostModel.of(load_model("smollm2-135m"), load_device("l4"), host or HostOverhead())


@pytest.mark.parametrize("own", [False, True])
def test_constants_come_back(own: bool) -> None:
    """Times made of known constants give them again; kernels of the engine's own may be faster than the curves."""
    host = HostOverhead(exposed_ns=2e6, exposed_per_sequence_ns=5e4, exposed_prefill_ns=1e6, prompt_factor=1.25)
    truth = cost(host).scaled(0.8 if own else 1.0, host=1.0)
    timed = [Timed(steps, float(sum(truth.step(step.shape()) for step in steps))) for steps in STEPS]
    found = fitted(cost(), timed, own)
    assert np.abs(errors(found, timed)).max() < 1e-3
    assert found.factor == pytest.approx(0.8 if own else 1.0, rel=0.01)
    assert found.host.prompt_factor == pytest.approx(1.25, rel=0.01)
    assert found.host.exposed_ns == pytest.approx(2e6, rel=0.02)
    assert ("kernels × 0.80" in words(found)) == own


def test_a_long_prompt_is_its_chunks() -> None:
    assert [step.chunks for step in probe.chunked(1100, 512)] == [((512, 0),), ((512, 512),), ((76, 1024),)]


def test_a_probe_sees_gaps_and_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> Timed:
        server = await asyncio.start_server(Fake(first_s=0.02), "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return await probe.Probe(Server(url), Load("tiny"), 512).decode(3, 100, 7)

    monkeypatch.setattr(probe, "TOKENS", 8)
    timed = asyncio.run(go())
    assert timed.ns == pytest.approx(20e6, rel=0.5)
    ((step,), count) = timed.steps, 3
    assert len(step.contexts) == count and all(100 < context < 110 for context in step.contexts)


def report(fake: Fake, tmp_path: Path) -> list[str]:
    async def go() -> list[str]:
        server = await asyncio.start_server(fake, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        asked = Asked(SCENARIO, Server(url), Load("tiny", warmup=0), runs=2, fit=False, out=tmp_path / "out")
        rows = (await asked.report(lambda *_: None)).rows
        return [f"{row.metric} {row.note.partition(',')[0]}" for row in rows]

    return asyncio.run(go())


def test_the_prediction_is_saved_beside_every_run(tmp_path: Path) -> None:
    assert report(Fake(first_s=0.01), tmp_path) == [f"{metric} 2 runs" for metric in ("total_s", *METRICS)]
    predicted, measured = (Result.load(tmp_path / "out" / name) for name in ("predicted", "measured-2"))
    assert predicted.run["provenance"]["tier"] != "measured" == measured.run["provenance"]["tier"]
    assert len(predicted.requests) == len(measured.requests) == 4


def test_a_failed_request_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="4 of 4 requests failed: HTTP 503"):
        report(Fake(status=503), tmp_path)
