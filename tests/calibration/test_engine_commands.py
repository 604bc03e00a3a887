"""What is measured with the reference engine: steps, a served trace, answers with and without a cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from kvsim_calibration.engine import rungs
from kvsim_calibration.engine.constants import Timed, centred
from kvsim_calibration.engine.setup import Options, build, serve
from kvsim_calibration.engine.steps import Step, fill, time_step
from kvsim_calibration.generation import Generation, measure, path_beside

from kvsim.cli import main
from kvsim.cost import CostModel, HostOverhead
from kvsim.device import load_device
from kvsim.model import load_model
from kvsim.result import Result
from kvsim.validate.truth import Asked

CPU = Path(__file__).resolve().parents[2] / "kvsim/data/profiles/cpu.json"
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 500,
    "max_position_embeddings": 8192,
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    file = tmp_path_factory.mktemp("model") / "tiny.json"
    file.write_text(json.dumps(CONFIG))
    return str(file)


def run(capsys, *words: str) -> tuple[int, str]:
    code = main(list(words))
    out = capsys.readouterr()
    return code, out.out + out.err


@pytest.mark.parametrize("step", [
    Step((30, 50)), Step((), ((20, 0), (7, 40))), Step((30,) * 3, ((20, 10),)),
])  # fmt: skip
def test_a_timed_step_is_the_step_that_was_asked_for_and_leaves_nothing_behind(tiny, step):
    engine = build(Options(tiny, "paged", step.tokens))
    fill(engine)
    free = engine.kv.stats().free
    seen = []
    turn = engine.turn
    engine.turn = lambda: seen.append(turn()) or seen[-1]  # type: ignore[method-assign]
    times = time_step(engine, step, 2)
    assert len(times) == 2
    assert min(times) > 0
    last = [(tokens, context) for _, tokens, context in seen[-1].chunks]
    later = len(seen) - 1  # decodes have gone on since
    assert last == [(1, context + later) for context in step.contexts] + list(step.chunks)
    assert engine.kv.stats().free == free
    assert engine.tokens == {}
    shape = step.shape()
    assert shape.tokens == len(step.contexts) + sum(tokens for tokens, _ in step.chunks)
    CostModel.of(load_model(tiny), load_device("cpu"), weights_dtype="fp32", kv_dtype="fp32").step(shape)


def test_validate_step_times_every_case_that_fits(tiny, monkeypatch):
    monkeypatch.setattr(rungs, "FITTED", (Step((40, 50)), Step((), ((30, 0),))))
    monkeypatch.setattr(rungs, "TRIED", (Step((30, 50)), Step((), ((20, 0),)), Step((10**9,))))
    report = rungs.step(Asked("cpu", CPU, tiny, 0.0, 1), lambda done, total: None)
    assert [row.group for row in report.rows] == ["decode", "prefill"]
    assert all(row.true > 0 and row.interval[0] <= row.predicted <= row.interval[1] for row in report.rows)
    assert sorted(report.skipped.values()) == [1, 2]  # needs too much memory; used to fit


def test_validate_serving_predicts_and_serves_the_same_requests(tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(rungs, "REQUESTS", (6, 6))
    code, text = run(capsys, "validate", "serving", "--engine", "reference", "--profile", str(CPU), "--model", tiny,
                     "--threads", "1", "--budget", "1s", "--out", str(tmp_path / "both"), "--json")  # fmt: skip
    found = json.loads(text)
    predicted, measured = ([Result.load(tmp_path / "both" / f"{name}-{piece + 1}") for piece in range(rungs.PIECES)]
                           for name in ("predicted", "measured"))  # fmt: skip
    for ours, theirs in zip(predicted, measured, strict=True):
        assert (ours.requests["prompt_tokens"] == theirs.requests["prompt_tokens"]).all()
    assert predicted[0].requests["prompt_tokens"].to_list() != predicted[1].requests["prompt_tokens"].to_list()
    for side, results in (("predicted", predicted), ("true", measured)):
        means = [result.summary["latency_s"]["ttft"]["mean"] for result in results]
        assert sum(means) / len(means) == pytest.approx(found["rows"][0][side])
    assert [row["metric"] for row in found["rows"]] == ["ttft", "tpot", "output_tokens_per_s"]
    assert all(row["true"] > 0 and row["predicted"] > 0 for row in found["rows"])
    assert code == bool(found["missed"])


def test_the_engine_and_its_prediction_share_prefixes_alike(tiny):
    ground = rungs.Ground.of(Asked("cpu", CPU, tiny, 0.0, 1))
    options, trace = ground.options(16_384, "paged-prefix"), rungs.traffic(8, rate=1e9)
    engine = build(options)
    engine.run(trace)
    predicted = ground.predict(options, trace).summary
    got = engine.record.request_columns()
    assert predicted["cache"]["prefix_hit_share"] == got["cached_tokens"].sum() / trace.prompt_tokens.sum() > 0
    assert predicted["steps"] == engine.record.engine_steps


@pytest.mark.parametrize(("words", "complaint"), [
    (("step",), "FILE of published steps, or --device"),
    (("step", "--device", "cpu", "--model", "mixtral-8x7b"), "runs Llama's architecture"),
    (("serving",), "or --engine reference"),
    (("serving", "--engine", "vllm"), "only `reference` can be run here"),
])  # fmt: skip
def test_what_cannot_be_run_is_said_in_words(capsys, words, complaint):
    code, text = run(capsys, "validate", *words)
    assert code == 2
    assert complaint in " ".join(text.split())


def test_steps_of_traffic_are_heard_as_they_are_recorded(tiny):
    ground, steps = rungs.Ground.of(Asked("cpu", CPU, tiny, 0.0, 1)), rungs.Steps()
    result = serve(ground.options(16_384, "paged-prefix"), rungs.traffic(6, rate=1e9), "here", watch=steps)
    shapes = [step.shape() for step in steps.seen]
    for column, heard in (("decode", [shape.decode for shape in shapes]),
                          ("attended", [sum(shape.attended) for shape in shapes]),
                          ("prefill_tokens", [sum(tokens for tokens, _ in shape.chunks) for shape in shapes])):
        assert result.steps[column].to_list() == heard and any(heard)
    timed = steps.timed(result)
    assert [one.ns for one in timed] == (result.steps["end_ns"] - result.steps["start_ns"]).to_list()


def test_constants_of_an_engine_are_found_again(tiny):
    ground = rungs.Ground.of(Asked("cpu", CPU, tiny, 0.0, 1))
    host = HostOverhead(2e6, 3e4, 5e5, prompt_factor=1.25)
    truth = CostModel(ground.cost.geometry, ground.device, host)
    found = ground.fitted(Timed((step,), truth.step(step.shape())) for step in rungs.FITTED).cost
    for step in rungs.TRIED:
        assert found.step(step.shape()) == pytest.approx(truth.step(step.shape()), rel=1e-3)


def test_disturbed_steps_count_as_the_time_they_took(tiny):
    """Half of the steps take half as long again: the fit believes the fast ones, the centred one has their sum."""
    ground = rungs.Ground.of(Asked("cpu", CPU, tiny, 0.0, 1))
    timed = [Timed((step,), ground.cost.step(step.shape()) * slow) for step in rungs.FITTED for slow in (1.0, 1.5)]
    found = ground.fitted(timed, own_kernels=True).cost
    total = sum(one.ns for one in timed)
    assert sum(found.step(one.steps[0].shape()) for one in timed) < 0.97 * total
    assert sum(centred(found, timed).step(one.steps[0].shape()) for one in timed) == pytest.approx(total, rel=1e-6)


def made(cached: list[float], uncached: list[float]) -> Generation:
    return Generation("m", "here", "fp32", "2", "2026-11-29", cached, uncached)


def test_crossover_and_growth_of_known_curves():
    n = np.arange(1, 257)
    found = made((50.0 + 10 * n).tolist(), (1.0 + n**2 / 4).tolist())
    first = next(i for i in n.tolist() if all(50 + 10 * k < 1 + k * k / 4 for k in range(i, 257)))
    assert found.crossover == first
    cached, uncached = found.growth()
    assert cached == pytest.approx(1, abs=0.05)
    assert uncached == pytest.approx(2, abs=0.05)
    assert made([1.0, 2.0], [2.0, 4.0]).crossover == 1


def test_answers_are_timed_stored_and_drawn(tiny, tmp_path, capsys):
    profile = tmp_path / "here.json"
    profile.write_text(CPU.read_text())
    code, text = run(capsys, "calibrate", "generation", str(profile), "--model", tiny, "--tokens", "24", "--budget",
                     "1s", "--device", "cpu", "--threads", "1")  # fmt: skip
    assert code == 0
    assert "The cache is ahead" in text
    found = Generation.load(path_beside(profile))
    assert len(found.cached_ns) == len(found.uncached_ns) == 24
    assert np.all(np.diff(found.uncached_ns) > 0)
    code, _ = run(capsys, "calibrate", "show", str(profile), "--html", str(tmp_path / "report.html"))
    assert code == 0
    assert "A whole answer, without a cache and with one" in (tmp_path / "report.html").read_text()


def test_a_short_budget_gives_a_short_answer_or_a_word(tiny):
    from kvsim.errors import InputError

    with pytest.raises(InputError, match="too short"):
        measure(tiny, "here", 64, 1e-9, "cpu", "fp32")
