"""The reference engine computes what a plain uncached forward computes, whatever its cache, schedule and memory."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvsim_calibration.engine.caches import Batch, Uncached  # noqa: E402
from kvsim_calibration.engine.engine import Engine  # noqa: E402
from kvsim_calibration.engine.generate import generate  # noqa: E402
from kvsim_calibration.engine.model import Dims, Llama, random_weights  # noqa: E402
from kvsim_calibration.engine.setup import Options, build, result  # noqa: E402

from kvsim.errors import InputError  # noqa: E402
from kvsim.model import load_model  # noqa: E402
from kvsim.model.config import from_config  # noqa: E402
from kvsim.sched.base import Plan  # noqa: E402
from kvsim.trace import Trace  # noqa: E402
from kvsim.trace.types import make_trace  # noqa: E402

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 500,
    "max_position_embeddings": 512,
}  # fmt: skip
TINY = from_config(CONFIG, "tiny")
SMALL = {"max_model_len": 128, "max_num_seqs": 6, "max_num_batched_tokens": 48}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny matrices
    yield
    torch.set_num_threads(before)


def traffic(shared: bool = False, requests: int = 10) -> Trace:
    """Requests that come at once, so that their schedule is always the same; `shared`: half of them begin alike."""
    rng = np.random.default_rng(3)
    prompts, outputs = rng.integers(50, 90, requests), rng.integers(4, 24, requests)
    blocks = {}
    if shared:
        ids = np.arange(requests) % 2
        blocks = {"block_ids": ids, "block_start": np.arange(requests + 1), "block_size": 40, "block_rule": "floor"}
    return make_trace("overlapping", "test", np.zeros(requests), prompts, outputs, **blocks)


def served(policy: str, kv_tokens: int, trace: Trace, dtype: str = "fp32") -> tuple[Engine, Options, list[Plan]]:
    options = Options("tiny", policy, kv_tokens, dtype=dtype, **SMALL)
    engine = build(options, spec=TINY)
    plans: list[Plan] = []
    engine.recorder = engine.run(trace, watch=plans.append)
    return engine, options, plans


@pytest.mark.parametrize(
    ("policy", "kv_tokens", "shared"),
    [
        ("uncached", 2048, False),
        ("contiguous", 4 * 128, False),
        ("paged", 2048, False),
        ("paged", 160, False),  # too little: sequences are preempted and computed again
        ("paged-prefix", 2048, True),
        ("paged-prefix", 160, True),
    ],
)
def test_every_lossless_cache_gives_the_tokens_of_an_uncached_forward(policy, kv_tokens, shared):
    trace = traffic(shared)
    engine, _, plans = served(policy, kv_tokens, trace)
    said: set[int] = set()
    for row in range(len(trace)):
        prompt = engine.tokens[row][: trace.prompt_tokens[row]]
        truth, _ = generate(engine.model, prompt, int(trace.output_tokens[row]))
        assert engine.tokens[row][len(prompt) :] == truth
        said |= set(truth)
    assert len(said) > 20  # a model that always says the same proves little
    requests = engine.recorder.request_columns()
    assert (requests["status"] == 0).all()
    assert (requests["preemptions"].sum() > 0) == (kv_tokens == 160)
    assert (requests["cached_tokens"].sum() > 0) == shared
    if policy != "uncached":
        assert any(0 < context < seq.prompt - tokens for plan in plans for seq, tokens, context in plan.chunks)


def test_in_bf16_other_tokens_come_from_ties_only():
    trace = traffic(True, 16)
    engine, _, _ = served("paged-prefix", 2048, trace, "bf16")
    steps = other = 0
    for row in range(len(trace)):
        tokens, first = engine.tokens[row], int(trace.prompt_tokens[row]) - 1
        batch = Batch([0], [len(tokens) - 1], [0])
        logits = engine.model(torch.tensor(tokens[:-1]), batch, Uncached(), slice(first, None)).float()
        got = logits.gather(1, torch.tensor(tokens[first + 1 :])[:, None])[:, 0]
        best = logits.amax(1)
        steps += len(best)
        other += int((logits.argmax(1) != torch.tensor(tokens[first + 1 :])).sum())
        assert (best - got <= best.abs() * 2**-5).all()  # a few units in bfloat16's last place of 8 bits
    assert other <= 0.01 * steps


def test_the_result_says_what_was_held_and_when_tokens_came():
    trace = traffic(True)
    engine, options, _ = served("paged-prefix", 2048, trace)
    run = result(engine, options, trace, engine.recorder, "here")
    summary = run.summary
    assert summary["requests"]["completed"] == len(trace)
    assert run.run["provenance"]["tier"] == "measured"
    assert run.run["memory_measured"]["cache_bytes"] == engine.kv.pool_bytes  # the account is of real tensors
    assert run.run["memory_measured"]["weights_bytes"] == TINY.weights_bytes("fp32")
    requests = run.requests
    assert (requests["arrival_ns"] <= requests["scheduled_ns"]).all()
    assert (requests["scheduled_ns"] < requests["first_token_ns"]).all()
    assert run.itl["count"].sum() == int(trace.output_tokens.sum()) - len(trace)
    computed = int((trace.prompt_tokens + trace.output_tokens - 1).sum()) - int(requests["cached_tokens"].sum())
    assert run.run["counters"]["prefill"] + run.run["counters"]["decode"] == computed


def test_follow_ups_wait_for_their_parent_and_what_cannot_fit_is_refused():
    trace = make_trace("chat", "test", [0, 0, 0], [20, 40, 200], [5, 5, 5], parent=[-1, 0, -1],
                       after_parent_ns=[0, 1_000_000, 0])  # fmt: skip
    engine, _, _ = served("paged", 2048, trace)
    requests = engine.recorder.request_columns()
    assert requests["arrival_ns"][1] == requests["last_token_ns"][0] + 1_000_000
    assert requests["status"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(("format", "worst"), [("int8", 0.02), ("fp8", 0.05), ("int4", 0.2)])
def test_quantized_caches_are_near_and_as_small_as_said(format, worst):
    options = Options("tiny", f"paged-{format}", 1024, **SMALL)
    engine = build(options, spec=TINY)
    assert engine.cache.nbytes() == engine.kv.pool_bytes
    tokens = torch.arange(60) * 7 % 500
    exact = engine.model(tokens, Batch([0], [60], [0]), Uncached(), slice(None))
    engine.kv.tables[0] = [3, 1, 2, 0]
    parts = [engine.model(tokens[a:b], Batch([0], [b - a], [a]), engine.cache, slice(None))
             for a, b in ((0, 25), (25, 59), (59, 60))]  # fmt: skip
    error = (torch.cat(parts) - exact).norm() / exact.norm()
    assert 0 < error < worst


@pytest.mark.parametrize("config", [
    {"rope_theta": 5e5, "rms_norm_eps": 1e-6},
    {"rope_theta": 5e5, "rope_scaling": None, "rms_norm_eps": 1e-6},
    {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "rms_norm_eps": 1e-6},
])  # fmt: skip
def test_rotary_base_and_epsilon_are_the_configs(config):
    dims = Dims.of(TINY, config)
    assert (dims.theta, dims.eps) == (5e5, 1e-6)


@pytest.mark.parametrize("config", [
    {"rope_theta": 5e5, "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}},
    {"rope_scaling": {"factor": 8.0, "type": "linear"}},
    {"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0}},
])  # fmt: skip
def test_scaled_rotary_embeddings_are_refused(config):
    with pytest.raises(InputError, match="no scaled rotary"):
        Dims.of(TINY, config)


def test_weights_are_checked_and_other_architectures_refused():
    dims = Dims.of(TINY)
    weights = random_weights(dims)
    with pytest.raises(InputError, match=r"lack model.norm.weight"):
        Llama(dims, {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"})
    with pytest.raises(InputError, match="has shape"):
        Llama(dims, weights | {"lm_head.weight": torch.zeros(3, 3)})
    with pytest.raises(InputError, match="is mixtral"):
        Dims.of(load_model("mixtral-8x7b"))
    assert Llama(dims, weights).nbytes == TINY.weights_bytes("fp32")
