"""Keys in a fitted basis: the same attention, smaller errors, and the kernels as they are."""

from __future__ import annotations

import pytest
import torch
from kvsim_calibration.accuracy.basis import Basis, fit, text
from kvsim_calibration.accuracy.caches import Decode, Prefill, Prompt
from kvsim_calibration.accuracy.evict import Scores
from kvsim_calibration.accuracy.policies import Policy
from kvsim_calibration.accuracy.stored import stored
from kvsim_calibration.engine.caches.base import Batch
from kvsim_calibration.engine.model import Dims, Llama, random_weights
from kvsim_calibration.engine.ops import attention
from kvsim_kernels import ContiguousCache, decode_attention, kv_append

DIMS = Dims(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=64, inter=64, vocab=64)


@pytest.fixture(scope="module")
def model() -> Llama:
    """As in real ones, some channels of keys hardly change: a bias makes them constant, and their rotation is slow."""
    weights = random_weights(DIMS, seed=3, scale=2.0)
    for layer in range(DIMS.layers):
        bias = torch.zeros(128)
        bias[[28, 31, 64 + 60]] = torch.tensor([12.0, -9.0, 15.0])
        weights[f"model.layers.{layer}.self_attn.k_proj.weight"] *= 0.4
        weights[f"model.layers.{layer}.self_attn.k_proj.bias"] = bias
        weights[f"model.layers.{layer}.self_attn.q_proj.bias"] = torch.zeros(256)
        weights[f"model.layers.{layer}.self_attn.v_proj.bias"] = torch.zeros(128)
    return Llama(DIMS, weights)


@pytest.fixture(scope="module")
def bases(model: Llama) -> list[Basis]:
    return fit(model, torch.randint(64, (400,), generator=torch.Generator().manual_seed(4)).tolist())


def sample(model: Llama, layer: int, tokens: int = 300) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v of a layer on another text than the one that bases are fitted on."""

    class Seen(Prefill):
        def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            found.append((q, k, v))
            return super().attend(layer, q, k, v)

    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    given = torch.randint(64, (tokens,), generator=torch.Generator().manual_seed(5))
    model(given, Batch([0], [tokens], [0]), Seen(observe=0))
    return found[layer]


def test_attention_does_not_see_the_basis(model: Llama, bases: list[Basis]) -> None:
    for layer, basis in enumerate(bases):
        q, k, v = sample(model, layer)
        plain = attention(q, k, v)
        assert torch.allclose(attention(basis.queries(q), basis.keys(k), v), plain, rtol=1e-3, atol=1e-3)
        assert torch.allclose(basis.seen(basis.keys(k)), k, rtol=1e-3, atol=1e-3)


def test_the_errors_of_products_are_the_least_there_are(model: Llama, bases: list[Basis]) -> None:
    """Σ E[k²] E[q²] over channels against its bound (tr (K Q)^½)² / D, by the moments of a text not seen before."""
    for layer, basis in enumerate(bases):
        q, k, _ = (x.double() for x in sample(model, layer))
        new_k, new_q = basis.keys(k.float()).double(), basis.queries(q.float()).double()
        for head in range(DIMS.kv_heads):
            mine, of = k[:, head] - basis.center[head].double(), slice(head * 2, head * 2 + 2)
            moments = [x.T @ x / len(x) for x in (mine, q[:, of].flatten(0, 1))]
            least = float(torch.linalg.eigvals(moments[0] @ moments[1]).real.clamp(min=0).sqrt().sum()) ** 2 / 64
            ours = float((new_k[:, head].pow(2).mean(0) * new_q[:, of].flatten(0, 1).pow(2).mean(0)).sum())
            plain = float((k[:, head].pow(2).mean(0) * moments[1].diagonal()).sum())
            assert 0.999 * least < ours < 1.5 * least and ours < 0.7 * plain


@pytest.mark.parametrize(("precision", "part"), [("fp8", 0.5), ("fp8-head", 0.7), ("int4", 0.3)])
def test_a_quantizer_errs_less(model: Llama, bases: list[Basis], precision: str, part: float) -> None:
    for layer, basis in enumerate(bases):
        q, k, v = sample(model, layer)
        exact = attention(q, k, v)
        ours = attention(q, basis.seen(stored(basis.keys(k), precision)), v)
        plain = attention(q, stored(k, precision), v)
        assert (ours - exact).norm() < part * (plain - exact).norm()


def test_decode_stores_keys_in_the_basis_and_values_as_they_are(model: Llama, bases: list[Basis]) -> None:
    q, k, v = sample(model, 0)
    left = Prompt([k[:250]], [v[:250]], [Scores(k.new_zeros(2, 250), k.new_zeros(2, 0, 250))])
    out = Decode(left, Policy("int4-basis"), DIMS.theta, bases).attend(0, q[250:], k[250:], v[250:])
    keys = bases[0].seen(stored(bases[0].keys(k.bfloat16().float()), "int4"))
    assert torch.allclose(out, attention(q, keys, stored(v, "int4"))[250:], rtol=1e-4, atol=1e-5)


def test_the_kernels_need_no_change(model: Llama, bases: list[Basis]) -> None:
    """fp8 keys appended and read by the kernels (CPU runner) as they are: what is measured is what they answer."""
    basis = bases[1]
    q, k, v = (x.bfloat16() for x in sample(model, 1, tokens=100))
    cache = ContiguousCache.zeros(1, 112, 2, 64, "fp8")
    kv_append(basis.keys(k.float()).bfloat16().contiguous(), v.contiguous(), cache, torch.arange(100))
    turned = basis.queries(q[-1:].float()).bfloat16().contiguous()
    answer = decode_attention(turned, cache, torch.tensor([100], dtype=torch.int32))
    keys = basis.seen(stored(basis.keys(k.float()), "fp8-head-basis"))
    true = attention(q[-1:].float(), keys, stored(v.float(), "fp8-head-basis"))
    assert float((answer.float() - true).norm() / true.norm()) < 0.02
    plain = attention(q[-1:].float(), stored(k.float(), "fp8-head"), stored(v.float(), "fp8-head"))
    assert float((plain - true).norm() / true.norm()) > 0.04  # and not by chance


def test_it_is_fitted_on_another_text_than_is_measured() -> None:
    from kvsim_calibration.accuracy.text import documentation

    assert len(text()) > 20_000 and not set(text()[:8000].split("\n\n")) & set(documentation().text.split("\n\n"))
