"""Each policy's attention against a cache that really drops tokens, one step after the other."""

from __future__ import annotations

import math

import pytest
import torch
from kvsim_calibration.accuracy import evict, measure
from kvsim_calibration.accuracy.caches import Decode, Prefill
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy
from kvsim_calibration.engine.caches import Contiguous, HeavyHitter, Window
from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.model import Llama
from kvsim_calibration.engine.ops import rotate, rotations
from kvsim_kernels.reference import select
from small_model import DIMS, PROMPT, STEPS

from kvsim.cache import retention


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


@pytest.mark.parametrize(("sinks", "recent"), [(0, 16), (4, 12), (4, 36), (4, 40), (4, 50), (50, 4), (2, 100)])
def test_a_window_is_a_cache_that_drops(model: Llama, tokens: torch.Tensor, sinks: int, recent: int) -> None:
    ours = logits(model, tokens, Policy("fp32", retention.Window(sinks, recent)))
    true = one_by_one(model, tokens, Streaming(model.rows(), 1, sinks, recent, PROMPT))
    assert close(ours, true)
    everything = logits(model, tokens, Policy("fp32"))
    assert close(ours, everything) == (sinks + recent >= PROMPT + STEPS - 1)


@pytest.mark.parametrize("policy", [Policy("fp32"), *(Policy("fp32", retention.Window(*kept))
                                    for kept in ((0, 16), (4, 12), (4, 50), (50, 4)))])
def test_steps_in_blocks_are_steps_at_once(model: Llama, tokens: torch.Tensor, policy: Policy,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logits(model, tokens, policy)
    monkeypatch.setattr(evict, "_BLOCK", 5)
    monkeypatch.setattr(evict, "_FULL_BLOCK", 7)
    assert close(logits(model, tokens, policy), whole)


def test_only_the_last_steps_may_count(model: Llama, tokens: torch.Tensor) -> None:
    policy = Policy(retention=retention.Window(4, 12))
    some = [row.facts() for row in measure.compare(model, tokens.tolist(), PROMPT, [policy], scored=5)]
    left = measure.prefill(model, tokens[:PROMPT], [policy])
    full, ours = (measure.decode(model, tokens[PROMPT:-1], left, p) for p in (FULL_CACHE, policy))
    assert len(ours.log_probs) == STEPS - 1
    nll = -ours.log_probs[torch.arange(-5, 0), tokens[-5:]].sum()
    kl = (full.log_probs.exp() * (full.log_probs - ours.log_probs))[-5:].sum()
    errors = [float((a - b)[-5:].norm() / b[-5:].norm()) for a, b in zip(ours.outputs, full.outputs, strict=True)]
    assert some[0]["tokens"] == some[1]["tokens"] == 5 and some[0]["kl"] == 0
    assert (some[1]["nll"], some[1]["kl"]) == pytest.approx((float(nll), float(kl)), rel=1e-5)
    assert some[1]["attention_error"] == pytest.approx(errors, rel=1e-5)
    every = -ours.log_probs[torch.arange(STEPS - 1), tokens[PROMPT + 1 :]].sum()
    assert some[1]["nll_all"] == pytest.approx(float(every), rel=1e-5)


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
