"""Prefill attention on the CPU runner: float64, torch's SDPA, edge values, 64-bit offsets, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kvsim_kernels import ContiguousCache, PagedCache
from kvsim_kernels.grid import Case, prefill, relative_error
from kvsim_kernels.prefill import prefill_attention
from kvsim_kernels.reference import prefill as reference
from kvsim_kernels.sample import Batch, batch
from kvsim_kernels.uncached import UncachedWorkspace, uncached_decode_attention

CPU = torch.device("cpu")
BF16, FP16 = torch.bfloat16, torch.float16


def label(case: Case) -> str:
    return f"{case.kernel}: {case.case}"


@pytest.mark.parametrize("case", list(prefill.cases(CPU, wide=False)), ids=label)
def test_against_float64(case: Case) -> None:
    assert case.run() <= case.bound


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wide_grid_against_float64() -> None:
    seen = {label(case) for case in prefill.cases(CPU, wide=False)}
    wide = [case for case in prefill.cases(CPU, wide=True) if label(case) not in seen]
    assert len(wide) > 20
    assert [label(case) for case in wide if not case.run() <= case.bound] == []


def attend(x: Batch, **options: object) -> torch.Tensor:
    return prefill_attention(x.q, x.cache, x.lengths, x.query_starts, block_table=x.block_table, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_agrees_with_torch_sdpa(kernel: str) -> None:
    x = batch([37], [37], kv_heads=2, group=4, head_dim=64, dtype=BF16)
    q, k, v = (tensor.transpose(0, 1).float() for tensor in (x.q, x.cache.keys[0], x.cache.values[0]))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert relative_error(attend(x, kernel=kernel), want.transpose(0, 1)) <= 5e-3


def test_a_chunk_with_context_continues_the_whole_prompt() -> None:
    """Row by row the same, wherever the prompt is cut: what a row sees does not depend on its tile."""
    whole = batch([90], [90], kv_heads=2, group=4, head_dim=64, dtype=FP16)
    out = attend(whole)
    for first in (1, 31, 64, 89):
        starts = torch.tensor([0, 90 - first], dtype=torch.int32)
        chunk = attend(replace(whole, q=whole.q[first:].contiguous(), query_starts=starts))
        assert relative_error(chunk, out[first:].double()) <= 5e-4


def test_scale_and_given_outputs() -> None:
    x = batch([5], [9], kv_heads=1, group=2, head_dim=64, dtype=FP16)
    out, lse = torch.empty_like(x.q), torch.empty(x.q.shape[:2])
    assert attend(x, scale=0.5, out=out, lse=lse) is out
    want, normaliser = reference.prefill_attention(x.q.double(), x.keys, x.values, [0, 5], [9], 0.5)
    assert relative_error(out, want) <= 1e-3
    assert relative_error(lse, normaliser) <= 1e-5


@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_large_scores_do_not_overflow(kernel: str) -> None:
    """Scores of up to about 10^4: the softmax is one-hot, exp of a score would be infinite."""
    x = batch([40], [40], kv_heads=1, group=1, head_dim=64, dtype=BF16)
    out = attend(replace(x, q=x.q * 1000), kernel=kernel)
    want, _ = reference.prefill_attention((x.q * 1000).double(), x.keys, x.values, [0, 40], [40], 0.125)
    assert relative_error(out, want) <= 5e-3


@pytest.mark.parametrize("kernel", ["flash", "naive"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_poisoned_key_reaches_the_queries_that_see_it_and_no_others(kernel: str, bad: float) -> None:
    x = batch([70], [70], kv_heads=2, group=1, head_dim=64, dtype=BF16)
    x.cache.keys[0, 50, 1, 3] = bad
    nan = attend(x, kernel=kernel).isnan().any(-1)
    x.keys[0, 50, 1, 3] = bad
    with np.errstate(invalid="ignore"):
        want, _ = reference.prefill_attention(x.q.double(), x.keys, x.values, [0, 70], [70], 0.125)
    assert np.array_equal(nan.numpy(), np.isnan(want).any(-1))
    assert not nan[:50].any() and not nan[:, 0].any() and nan[50:, 1].any()


@pytest.mark.parametrize("block_size", [0, 128])
def test_offsets_past_two_to_the_31(block_size: int) -> None:
    """A cache of 2^31 numbers and more, of which only the last rows are ever touched."""
    kv_heads, head_dim, length = 16, 256, 40
    rows = -(-(2**31 + 2**20) // (kv_heads * head_dim) // 128) * 128
    shape = (rows // 128, 128, kv_heads, head_dim) if block_size else (1, rows, kv_heads, head_dim)
    keys, values = (torch.empty(shape, dtype=FP16) for _ in range(2))
    assert keys.numel() > 2**31
    small = batch([2], [length], kv_heads, 1, head_dim, FP16)
    for tensor, given in ((keys, small.cache.keys), (values, small.cache.values)):
        tensor.view(rows, kv_heads, head_dim)[rows - 128 : rows - 128 + length] = given[0]
    starts, lengths = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    if block_size:
        table = torch.tensor([[rows // 128 - 1]], dtype=torch.int32)
        out = prefill_attention(small.q, PagedCache(keys, values), lengths, starts, block_table=table)
    else:
        # Sequences lie `capacity` rows apart: two of them, the second of which holds the tokens.
        half = ContiguousCache(
            keys.view(2, rows // 2, kv_heads, head_dim), values.view(2, rows // 2, kv_heads, head_dim)
        )
        for tensor, given in ((half.keys, small.cache.keys), (half.values, small.cache.values)):
            tensor[1, :length] = given[0]
        both = torch.tensor([0, length], dtype=torch.int32)
        out = prefill_attention(small.q, half, both, torch.tensor([0, 0, 2], dtype=torch.int32))
    want, _ = reference.prefill_attention(small.q.double(), small.keys, small.values, [0, 2], [length], head_dim**-0.5)
    assert relative_error(out, want) <= 1e-3


def test_an_empty_batch_and_empty_chunks() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    cache = ContiguousCache.zeros(0, 8, 1, 64)
    q = torch.empty(0, 4, 64, dtype=BF16)
    assert prefill_attention(q, cache, none, torch.zeros(1, dtype=torch.int32)).shape == (0, 4, 64)
    x = batch([0, 0], [5, 0], 1, 4, 64, BF16)
    assert attend(x).shape == (0, 4, 64)


def changed(**changes: object) -> Batch:
    x = batch([3, 2], [20, 2], 2, 2, 64, BF16, block_size=16)
    return replace(x, **changes)  # type: ignore[arg-type]


def int32(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (changed(q=torch.zeros(5, 4, 64)), {}, "q is torch.float32"),
        (changed(q=torch.zeros(5, 4, 128, dtype=BF16)), {}, r"q has shape \[5, 4, 128\]"),
        (changed(q=torch.zeros(5, 3, 64, dtype=BF16)), {}, "3 query heads are no multiple of 2 KV heads"),
        (changed(q=torch.zeros(5, 64, 4, dtype=BF16).transpose(1, 2)), {}, "q is not contiguous"),
        (changed(q=torch.zeros(5, 4, 64, dtype=BF16, device="meta")), {}, "q is on meta"),
        (changed(lengths=torch.tensor([20, 2])), {}, "lengths is torch.int64"),
        (changed(lengths=int32(33, 2)), {}, r"lengths\[0\] is 33; the table has room for 0 to 32"),
        (changed(lengths=int32(20, 1)), {}, "sequence 1 has 2 queries, but its length is 1"),
        (changed(lengths=int32(17, 17)), {}, r"block_table\[1, 1\] is -1; the cache has blocks 0 to 6"),
        (changed(query_starts=int32(0, 3)), {}, "query_starts has shape"),
        (changed(query_starts=int32(0, 3, 4)), {}, "query_starts must rise from 0 to the 5 tokens"),
        (changed(block_table=None), {}, "a PagedCache needs block_table"),
        (changed(), {"kernel": "fast"}, "kernel is 'fast', not 'flash' or 'naive'"),
        (changed(), {"most_queries": 2}, "sequence 0 has 3 queries, but its length is 20, most_queries is 2"),
        (changed(), {"out": torch.zeros(5, 4, 32, dtype=BF16)}, r"out has shape \[5, 4, 32\]"),
        (changed(), {"lse": torch.zeros(5, 4, dtype=BF16)}, "lse is torch.bfloat16"),
        (changed(cache=PagedCache.zeros(7, 16, 2, 64, "int8")), {}, "the cache is int8; .* bf16 and fp16 caches only"),
    ],
)
def test_bad_input_is_refused_in_words(x: Batch, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(x, **options)


def test_uncached_decode_of_an_empty_batch_is_empty() -> None:
    weight = torch.zeros(2, 64, 32, dtype=BF16)
    q, hidden = torch.zeros(0, 4, 64, dtype=BF16), torch.zeros(0, 8, 32, dtype=BF16)
    assert uncached_decode_attention(q, hidden, weight, weight, int32()).shape == (0, 4, 64)


def test_uncached_decode_computes_into_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, hidden, *weights = (torch.randn(shape).to(BF16) for shape in ((2, 4, 64), (2, 24, 32), (2, 64, 32), (2, 64, 32)))
    lengths = int32(24, 7)
    want = uncached_decode_attention(q, hidden, *weights, lengths)
    workspace, out = UncachedWorkspace.of(hidden, weights[0]), torch.empty_like(q)
    assert uncached_decode_attention(q, hidden, *weights, lengths, out=out, workspace=workspace) is out
    assert torch.equal(out, want)
    with pytest.raises(ValueError, match=r"workspace.keys has shape"):
        uncached_decode_attention(q[:1], hidden[:1], *weights, lengths[:1], workspace=workspace)
    monkeypatch.setattr("kvsim_kernels.uncached.capturing", lambda device: True)
    with pytest.raises(ValueError, match="give `out` and `workspace` while a CUDA graph is captured"):
        uncached_decode_attention(q, hidden, *weights, lengths, out=out)


def test_uncached_decode_refuses_an_empty_sequence() -> None:
    weight = torch.zeros(1, 64, 32, dtype=BF16)
    q, hidden = torch.zeros(2, 2, 64, dtype=BF16), torch.zeros(2, 8, 32, dtype=BF16)
    with pytest.raises(ValueError, match="sequence 1 has 1 queries, but its length is 0"):
        uncached_decode_attention(q, hidden, weight, weight, int32(3, 0))
    with pytest.raises(ValueError, match=r"q has shape \[2, 64\]"):
        uncached_decode_attention(q[:, 0], hidden, weight, weight, int32(3, 1))
    with pytest.raises(ValueError, match=r"value_weight has shape \[1, 32, 64\]"):
        uncached_decode_attention(q, hidden, weight, weight.transpose(1, 2).contiguous(), int32(3, 1))
