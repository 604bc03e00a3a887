"""Attention received by cached tokens, on the CPU runner."""

from __future__ import annotations

import pytest
import torch
from kvsim_kernels import PagedCache
from kvsim_kernels.decode import Path, decode_attention
from kvsim_kernels.grid import Case, score
from kvsim_kernels.prefill import prefill_attention
from kvsim_kernels.sample import batch
from kvsim_kernels.score import kv_score

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", list(score.cases(CPU, wide=False)), ids=lambda case: case.case)
def test_against_float64(case: Case) -> None:
    assert case.run() <= case.bound


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wide_grid_against_float64() -> None:
    assert [case.case for case in score.cases(CPU, wide=True) if not case.run() <= case.bound] == []


def test_each_query_and_head_gives_one_in_all() -> None:
    """Probabilities: the scores of a KV head sum to queries x heads of the group, each time they are added."""
    x = batch([60, 7], [60, 90], kv_heads=2, group=3, head_dim=64, dtype=torch.bfloat16)
    lse = torch.empty(x.q.shape[:2])
    prefill_attention(x.q, x.cache, x.lengths, x.query_starts, lse=lse)
    scores = torch.zeros(2, 2, 90)
    for times in (1, 2):
        kv_score(x.q, lse, x.cache, x.lengths, x.query_starts, scores)
        torch.testing.assert_close(scores.sum(-1), times * 3 * torch.tensor([[60.0, 60], [7, 7]]), rtol=1e-4, atol=0)
    assert not scores[0, :, 60:].any()


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("kernel", ["tensor-cores", "cuda-cores"])
def test_decode_leaves_the_normaliser_that_prefill_leaves(kernel: Path, splits: int) -> None:
    x = batch([1, 1, 1], [130, 1, 70], kv_heads=2, group=2, head_dim=64, dtype=torch.bfloat16, block_size=16)
    want, got = torch.empty(2, 3, 4)
    prefill_attention(x.q, x.cache, x.lengths, x.query_starts, block_table=x.block_table, lse=want)
    decode_attention(x.q, x.cache, x.lengths, block_table=x.block_table, kernel=kernel, splits=splits, lse=got)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-2)  # decode rounds scaled queries to bf16
    nothing = torch.zeros(3, 4)
    decode_attention(x.q, x.cache, 0 * x.lengths, block_table=x.block_table, kernel=kernel, splits=splits, lse=nothing)
    assert (nothing == -torch.inf).all()


def test_offsets_past_two_to_the_31() -> None:
    """Keys in the last blocks of a cache of 2^31 numbers, of which only those blocks are ever touched."""
    x = batch([2], [140], kv_heads=16, group=1, head_dim=256, dtype=torch.float16, block_size=128)
    assert x.block_table is not None and isinstance(x.cache, PagedCache)
    blocks = 2**31 // x.cache.keys[0].numel() + 8
    keys = torch.empty(blocks, *x.cache.keys.shape[1:], dtype=torch.float16)
    keys[blocks - x.cache.blocks :] = x.cache.keys
    lse = torch.empty(x.q.shape[:2])
    prefill_attention(x.q, x.cache, x.lengths, x.query_starts, block_table=x.block_table, lse=lse)
    want, got = torch.zeros(2, 1, 16, 256)
    kv_score(x.q, lse, x.cache, x.lengths, x.query_starts, want, block_table=x.block_table)
    far = x.block_table + (blocks - x.cache.blocks)
    kv_score(x.q, lse, PagedCache(keys, keys), x.lengths, x.query_starts, got, block_table=far)
    assert torch.equal(got, want) and want.any()


def test_bad_input_is_refused_in_words() -> None:
    x = batch([2], [9], kv_heads=2, group=1, head_dim=64, dtype=torch.bfloat16)
    lse, scores = torch.zeros(2, 2), torch.zeros(1, 2, 9)

    def refused(message: str, lse: torch.Tensor = lse, scores: torch.Tensor = scores) -> None:
        with pytest.raises(ValueError, match=message):
            kv_score(x.q, lse, x.cache, x.lengths, x.query_starts, scores)

    refused(r"lse has shape \[2, 1\]", lse=torch.zeros(2, 1))
    refused(r"scores has shape \[1, 2, 8\]; \[1, 2, 9\] is needed", scores=torch.zeros(1, 2, 8))
    refused("scores is torch.float64", scores=scores.double())
