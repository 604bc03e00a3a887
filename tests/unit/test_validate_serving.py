"""The serving and step rungs: what a case's words become, in which unit the answer is, and what is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim import cli
from kvsim.cost import CostModel, StepShape
from kvsim.cost.lockstep import Lockstep
from kvsim.cost.nccl import over_nccl
from kvsim.device import load_device
from kvsim.engine_profile import load_engine
from kvsim.errors import InputError
from kvsim.interval import ends, interval
from kvsim.memory import plan_memory
from kvsim.model import load_model
from kvsim.simulate import results
from kvsim.validate.published import as_published
from kvsim.validate.serving import Prediction, _before_engine_s, setup_of, validate_cases
from kvsim.validate.serving_runs import validate_runs
from kvsim.validate.step import validate_step
from kvsim.validate.workload import recorded, trace_of_case

WORK: dict[str, Any] = {
    "type": "offline", "arrival": "all_at_once", "num_requests": 40, "input_len": 100, "output_len": 20,
    "input_dist": "fixed", "output_dist": "fixed",
}  # fmt: skip


def case(**changes: Any) -> dict[str, Any]:
    return {
        "id": "c", "kind": "throughput", "model_id": "llama-3.1-8b", "engine_id": "vllm-1", "engine_version": "0.19.0",
        "weights_dtype": "bf16", "kv_dtype_id": "bf16", "tp": 1, "pp": 1, "dp": 1, "ep": 1, "device_id": "b200",
        "n_gpus": 1, "per_gpu": False, "metric_id": "output_tokens_per_s", "value_si": 5000.0, "needs": None,
        "checkable": ["serving"], "workload": WORK,
    } | changes  # fmt: skip


def file(tmp_path: Path, *cases: dict[str, Any]) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cases))
    return path


def test_rates_are_in_the_cases_own_convention(tmp_path: Path) -> None:
    """Two replicas give twice the rate of one with half the requests; per GPU that is half of it again."""
    half = {**WORK, "num_requests": 20}
    one, both, per_gpu = validate_cases(file(
        tmp_path, case(workload=half), case(dp=2, n_gpus=2), case(dp=2, n_gpus=2, per_gpu=True))).rows  # fmt: skip
    assert both.predicted == pytest.approx(2 * one.predicted)
    assert per_gpu.predicted == pytest.approx(one.predicted)
    assert one.interval is not None and one.interval[0] < one.predicted < one.interval[1]


def test_replicas_that_share_experts_are_one_run(tmp_path: Path) -> None:
    """Of all requests, and slower than twice one replica that has its experts to itself."""
    moe = {"model_id": "qwen3-30b-a3b", "dp": 2, "n_gpus": 2}
    apart, shared = validate_cases(file(tmp_path, case(**moe), case(**moe, ep=2))).rows
    assert setup_of(case(**moe, ep=2)).group == 2 and setup_of(case(**moe)).group == 1
    assert shared.predicted < 0.9 * apart.predicted
    assert (apart.split, shared.split) == ("DP 2", "DP 2 EP 2")


def test_a_client_of_vllm_waits_for_the_tokenizer(tmp_path: Path) -> None:
    """In TTFT and in nothing else; other engines' benchmarks, and recorded workloads, send token ids."""
    work = {**WORK, "input_len": 20_000, "num_requests": 1}
    vllm, other, tpot = validate_cases(file(
        tmp_path, *(case(metric_id=metric, engine_id=engine, engine_version=None, workload=work)
                    for metric, engine in (("ttft_mean", "vllm-1"), ("ttft_mean", "trtllm"), ("tpot_mean", "vllm-1")))
    )).rows  # fmt: skip
    assert _before_engine_s(case(metric_id="ttft_mean", workload=work)) == pytest.approx(0.1)
    assert vllm.interval is not None and vllm.interval[0] > 0.1 and vllm.predicted > 0.1
    assert _before_engine_s(case(metric_id="tpot_mean", workload=work)) == 0 < tpot.predicted
    assert _before_engine_s(case(metric_id="ttft_mean", engine_id="trtllm", workload=work)) == 0 < other.predicted
    assert _before_engine_s(case(metric_id="ttft_mean", workload={**work, "arrival": "trace"})) == 0


def test_vllm_0_tokenizes_an_offline_batch_before_its_first_step(tmp_path: Path) -> None:
    """And its benchmark times that: a rate is of both."""
    old = {"engine_id": "vllm-0", "engine_version": "0.6.4"}
    row = validate_cases(file(tmp_path, case(**old))).rows[0]
    bare = _run_of(case(**old)).summaries[0]
    seconds = 40 * 20 / row.predicted
    assert seconds == pytest.approx(bare["duration_s"] + 40 * 100 * 5e-6)


def _run_of(one: dict[str, Any]) -> Prediction:
    return Prediction.of(results(trace_of_case(one["workload"]), setup_of(one)))


def test_a_cases_source_says_what_its_record_does_not() -> None:
    """LMDeploy's scripts set the pool in blocks; vLLM's log says that its own all-reduce was off."""
    told = case(model_id="llama-2-7b", engine_id="lmdeploy", engine_version="0.1.0a1", device_id="a100-80-sxm",
                kv_dtype_id="fp16", source="LMDeploy docs, docs/en/benchmark/a100_fp16.md")
    setup = setup_of(told)
    known = as_published(setup, told).memory
    assert (known.blocks, known.pool, known.spread) == (1000, 1000 * 128 * 32 * 2 * 4096 * 2, 0)
    assert as_published(setup, {**told, "source": "elsewhere"}) is setup
    assert as_published(setup, {**told, "model_id": "yi-34b"}) is setup
    plain = case(model_id="llama-3.1-70b", engine_id="vllm-0", engine_version=None, device_id="h100-sxm", tp=8)
    off = {**plain, "workload": {**WORK, "other": {"custom_all_reduce": False}}}
    own, nccl = (as_published(setup_of(plain), one).cost for one in (plain, off))
    few, nccls = (cost.parts(shape(4))["allreduce"] for cost in (own, nccl))
    assert nccls.ns > 160 * 25e3 > few.ns and nccls.tier == "imported"
    card = load_device("l40s")  # no NVLink: its table is NCCL's
    assert over_nccl(card) is card


def test_only_what_nobody_states_is_skipped(tmp_path: Path) -> None:
    report = validate_cases(file(tmp_path, case(needs="prompt lengths"), case(device_id=None), case(checkable=[])))
    assert report.rows == []
    assert report.skipped == {"needs prompt lengths": 1, "the case names no device": 1}
    assert report.missed() == ["1 checkable cases not predicted: the case names no device"]


def test_a_closed_loop_keeps_as_many_in_flight_as_it_has_clients() -> None:
    trace = trace_of_case({**WORK, "arrival": "closed", "concurrency": 4, "num_requests": 10})
    assert (trace.parent[:4] == -1).all()
    assert trace.parent[4:].tolist() == [0, 1, 2, 3, 4, 5]


def test_open_arrivals_have_the_cases_rate_and_drawn_lengths_its_means() -> None:
    work = {**WORK, "arrival": "trace", "request_rate": 10.0, "num_requests": 300, "input_dist": "sharegpt"}
    trace = trace_of_case(work)
    assert trace.arrival_ns[-1] == pytest.approx(30e9, rel=0.05)  # 299 gaps at the mean of 300
    assert trace.prompt_tokens.mean() == pytest.approx(100, rel=0.02)
    assert np.std(trace.prompt_tokens) > 10
    with pytest.raises(InputError, match="no request rate"):
        trace_of_case({**work, "request_rate": None})


def test_a_recorded_workload_is_replayed_row_by_row() -> None:
    """Its own arrivals and pairs of lengths, at the means of the case; replicas take turns; then it repeats."""
    work = {**WORK, "arrival": "trace", "request_rate": 10.0, "num_requests": 300, "input_len": 857.4633,
            "output_len": 652.51, "input_dist": "sharegpt", "output_dist": "sharegpt"}  # fmt: skip
    own, trace = recorded(), trace_of_case(work)
    assert (trace.prompt_tokens == own.prompt_tokens).all() and (trace.output_tokens == own.output_tokens).all()
    assert trace.arrival_ns[-1] == pytest.approx(30e9, rel=0.01)
    assert (np.diff(trace.arrival_ns) > 0).sum() == (np.diff(own.arrival_ns) > 0).sum()
    half = trace_of_case(work, replicas=2)
    assert len(half) == 150 and half.arrival_ns[-1] == pytest.approx(30e9, rel=0.02)
    assert np.corrcoef(half.prompt_tokens, own.prompt_tokens[::2])[0, 1] > 0.9999
    twice = trace_of_case({**work, "num_requests": 600})
    assert (np.diff(twice.arrival_ns) >= 0).all() and (twice.prompt_tokens[:300] == twice.prompt_tokens[300:]).all()
    with pytest.raises(InputError, match="no request rate"):
        trace_of_case({**work, "request_rate": None})


def test_a_static_batch_is_one_prefill_and_its_decode_steps(tmp_path: Path) -> None:
    work = {**WORK, "type": "static", "batch": 8}
    rate, prefill, decode = validate_step(file(
        tmp_path, case(workload=work, checkable=["step"]),
        case(workload=work, checkable=["step"], metric_id="step_prefill"),
        case(workload=work, checkable=["step"], metric_id="step_decode"))).rows  # fmt: skip
    assert rate.predicted == pytest.approx(8 * 20 / (prefill.predicted + 19 * decode.predicted))


def shape(decode: int, *chunks: int) -> StepShape:
    return StepShape(decode=decode, attended=(decode * 500,), longest=(500,), growing=(decode,), longest_grows=(True,),
                     chunks=tuple((chunk, 0) for chunk in chunks), sampled=decode)  # fmt: skip


def test_replicas_in_lockstep_wait_for_the_slowest() -> None:
    parts = (load_model("qwen3-30b-a3b"), load_device("b200"))
    one = CostModel.of(*parts, ep=2, dp=2)
    both = Lockstep.over(2, one)
    assert both.step(shape(64)) == one.step(shape(32))
    assert both.step(shape(64, 1000)) == both.step(shape(64, 1000, 900)) > both.step(shape(64, 500, 500))
    assert both.decode_run(shape(64), 40).tolist() == one.decode_run(shape(32), 40).tolist()
    assert both.scaled(2.0).step(shape(64)) == one.scaled(2.0).step(shape(32))


def test_the_ends_move_time_and_memory_and_the_interval_is_wider() -> None:
    model, device = load_model("llama-3.1-8b"), load_device("b200")
    plan = plan_memory(model, device, load_engine("vllm-1"))
    cost = CostModel.of(model, device)
    (fast, large), (slow, small) = ends(cost, plan, shape(32))
    assert fast.step(shape(32)) < cost.step(shape(32)) < slow.step(shape(32))
    assert small.pool < plan.pool < large.pool
    assert large.pool - plan.pool == pytest.approx(plan.spread, abs=plan.group_token_bytes * plan.block_size)
    summary = {"throughput": {"output_tokens_per_s": 100.0}, "latency_s": {"ttft": {"p50": None}}}
    found = interval([summary], ("output_tokens_per_s", "ttft_p50"))
    assert list(found) == ["output_tokens_per_s"]
    assert found["output_tokens_per_s"][0] < 100 < found["output_tokens_per_s"][1]


def measured_run(folder: Path, **meta: Any) -> Path:
    """A run as the bench writes it: three requests on a GPU whose name its config.json has."""
    folder.mkdir()
    times = [{"request_id": f"r{i}", "input_toks": 50, "output_toks": 10, "queued_ts": 100.0 + i,
              "first_token_ts": 100.02 + i, "last_token_ts": 100.2 + i} for i in range(3)]  # fmt: skip
    (folder / "requests.jsonl").write_text("".join(json.dumps(t) + "\n" for t in times))
    told = {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 16, "kv_cache_dtype": "auto"} | meta
    (folder / "meta.json").write_text(json.dumps({"vllm_version": "0.19.0", "engine_kwargs": told}))
    config = {"nodes": [{"instances": [{"hardware": "B200"}]}]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_measured_run_is_replayed_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = measured_run(tmp_path / "run")
    report = validate_runs(folder)
    truth = {row.metric: row.true for row in report.rows}
    assert truth["ttft_mean"] == pytest.approx(0.02)
    assert truth["tpot_p50"] == pytest.approx(0.18 / 9)
    assert truth["output_tokens_per_s"] == pytest.approx(30 / 2.2)
    assert cli.main(["validate", "serving", str(folder), "--json"]) == (1 if report.missed() else 0)
    assert json.loads(capsys.readouterr().out)["rung"] == "serving"


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.txt").write_text("x")
    with pytest.raises(InputError, match="holds no measured run"):
        validate_runs(tmp_path / "empty")
    folder = measured_run(tmp_path / "run")
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match="say --device"):
        validate_runs(folder)


def test_errors_are_told_by_parallelism_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, case(), case(tp=8), case(tp=2, n_gpus=2), case(dp=2, tp=2, n_gpus=4), case(dp=2, n_gpus=2))
    cli.main(["validate", "serving", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found["splits"]) == ["one GPU", "DP 2", "TP 2", "TP 8", "TP 2 DP 2"]
    assert all(one["cases"] == 1 and one["median_abs"] > 0 for one in found["splits"].values())
    assert [row["split"] for row in found["rows"]] == ["one GPU", "TP 8", "TP 2", "TP 2 DP 2", "DP 2"]
    cli.main(["validate", "serving", str(path)])
    assert "parallelism" in capsys.readouterr().out
    cli.main(["validate", "serving", str(file(tmp_path, case()))])
    assert "parallelism" not in capsys.readouterr().out
