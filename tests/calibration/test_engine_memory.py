"""The engine's real memory: blocks under kvsim's rules, formats to the bit, evictions as the reference chooses."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvsim_calibration.engine.blocks import BlockPool  # noqa: E402
from kvsim_calibration.engine.caches import Batch, Contiguous, HeavyHitter, Paged, Rows, Uncached, Window  # noqa: E402
from kvsim_calibration.engine.caches.kernels import KernelPaged  # noqa: E402
from kvsim_calibration.engine.caches.store import numbers, quantize  # noqa: E402
from kvsim_calibration.engine.model import Dims, Llama  # noqa: E402
from kvsim_kernels.reference import quantize as reference  # noqa: E402
from kvsim_kernels.reference.select import heavy_hitters  # noqa: E402

from kvsim.cache.base import Sequence  # noqa: E402
from kvsim.cache.prefix import PrefixPaged  # noqa: E402

SIZE = 4
DIMS = Dims(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, inter=96, vocab=300)


def pair(row: int, rng: random.Random) -> tuple[Sequence, Sequence]:
    """One request, as the simulator's cache and as the engine's pool know it: 0 to 3 blocks from a small stock."""
    prompt, output = rng.randint(1, 24), rng.randint(1, 12)
    shared = min(rng.randint(0, 3), prompt // SIZE)
    story = rng.randint(0, 1)
    ids = [story * 10 + block for block in range(shared)]
    tokens = [1000 * id + offset for id in ids for offset in range(SIZE)]
    tokens += [-(row * 1000 + at) for at in range(len(tokens), prompt + output)]
    runs = [(id, block, 1) for block, id in enumerate(ids)]
    return Sequence(row, prompt, output, chain=runs), Sequence(row, prompt, output, chain=tokens)


@pytest.mark.parametrize("seed", range(40))
def test_the_pool_follows_the_simulators_prefix_cache(seed):
    rng = random.Random(seed)
    blocks = rng.randint(8, 20)
    account = PrefixPaged(blocks=blocks, block_size=SIZE, token_bytes=10)
    pool = BlockPool(blocks=blocks, block_size=SIZE, token_bytes=10, share=True)
    waiting, running = [pair(row, rng) for row in range(30)], []
    for _ in range(200):
        what = rng.random()
        if waiting and what < 0.3:
            a, b = waiting[0]
            assert account.match(a) == pool.match(b)
            tokens = rng.randint(1, a.tokens - account.match(a))
            ensure = rng.choice((0, a.tokens))
            fits = account.admit(a, tokens, ensure)
            assert fits == pool.admit(b, tokens, ensure)
            if fits:
                assert a.cached == b.cached
                running.append(waiting.pop(0))
                for seq in (a, b):
                    seq.computed += tokens
        elif running and what < 0.85:
            a, b = rng.choice(running)
            if not a.pending:  # a token is sampled
                a.generated += 1
                b.generated += 1
            tokens = rng.randint(1, a.pending)
            fits = account.grow(a, tokens)
            assert fits == pool.grow(b, tokens)
            if fits:
                a.computed += tokens
                b.computed += tokens
        elif running:
            a, b = running.pop(rng.randrange(len(running)))
            finished = a.generated + 1 >= a.output
            account.release(a, finished=finished)
            pool.release(b, finished=finished)
            a.computed = b.computed = 0
            if not finished:
                waiting.insert(0, (a, b))
        done = [each for each in running if each[0].generated >= each[0].output]
        for a, b in done:
            running.remove((a, b))
            account.release(a, finished=True)
            pool.release(b, finished=True)
        pool.check()
        assert pool.stats() == account.stats()
        assert pool.evicted_blocks == account.evicted_blocks


@pytest.mark.parametrize("format", ["int8", "fp8", "int4"])
def test_formats_are_the_kernels_to_the_bit(format):
    x = torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 4, 50)[:, None, None]
    x[3], x[4] = 0, 0.5
    codes, scales = quantize(x, format)
    expected, expected_scales = reference.quantize(x.numpy(), format)
    assert (codes.view(torch.uint8).numpy() == expected.view(np.uint8)).all()
    assert (scales.numpy() == expected_scales).all()
    assert (numbers(codes, scales, format).numpy() == reference.numbers(expected, expected_scales, format)).all()


def rows() -> Rows:
    return Rows(DIMS.layers, DIMS.kv_heads, DIMS.head_dim, torch.float32, torch.device("cpu"))


def fed(model: Llama, tokens: torch.Tensor, cache, chunks: list[int]) -> torch.Tensor:
    """Logits of all tokens, computed in chunks."""
    found, at = [], 0
    for count in chunks:
        found.append(model(tokens[at : at + count], Batch([9], [count], [at]), cache, slice(None)))
        at += count
    return torch.cat(found)


def test_evicting_caches_are_exact_until_their_budget_is_full():
    model, tokens = Llama.random(DIMS, 1), torch.arange(40) * 11 % 300
    exact = model(tokens, Batch([0], [40], [0]), Uncached(), slice(None))
    for cache in (Window(rows(), 1, sinks=2, recent=14, chunk=16), HeavyHitter(rows(), 1, 16, 8, chunk=16)):
        got = fed(model, tokens, cache, [9, 7] + [1] * 24)
        assert torch.allclose(got[:16], exact[:16], atol=1e-4)
        assert not torch.allclose(got[20:], exact[20:], atol=1e-2)
        assert cache.length[9] == 16


def test_a_window_holds_sinks_and_the_latest():
    model, tokens = Llama.random(DIMS, 1), torch.arange(30) * 11 % 300
    window, whole = Window(rows(), 1, sinks=2, recent=5, chunk=8), Contiguous(rows(), 1, 32)
    for cache in (window, whole):
        fed(model, tokens, cache, [8, 8, 8])
    kept = [0, 1, 19, 20, 21, 22, 23]
    # the first layer's rows depend on their own token only, so they are those of the whole cache
    assert torch.equal(window.store.keys[0][0, :7], whole.store.keys[0][0, kept])
    assert torch.equal(window.store.values[0][0, :7], whole.store.values[0][0, kept])


def test_heavy_hitters_are_those_of_the_reference():
    model, tokens = Llama.random(DIMS, 1), torch.arange(30) * 11 % 300
    cache, whole = HeavyHitter(rows(), 1, budget=12, recent=4, chunk=24), Contiguous(rows(), 1, 32)
    scored = HeavyHitter(rows(), 1, budget=30, recent=4, chunk=24)  # keeps everything: only its scores count
    for each in (cache, whole, scored):
        fed(model, tokens, each, [24])
    for layer in range(DIMS.layers):
        stay = heavy_hitters(scored.scores[layer, 0, :, :24].numpy(), 12, 4)
        for head in range(DIMS.kv_heads):
            expected = whole.store.keys[layer][0, stay[head], head]
            assert torch.equal(cache.store.keys[layer][0, :12, head], expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels run on the CPU by g++")
@pytest.mark.parametrize("format", ["plain", "int8"])
def test_the_kernels_attend_what_torch_attends(format):
    """The adapter of GPUs, its kernels on the CPU: chunks, decodes and both in one step."""
    generator = torch.Generator().manual_seed(1)
    kept = Rows(1, 2, 64, torch.bfloat16, torch.device("cpu"))
    tables = {0: [4, 1, 3], 7: [0, 2]}
    caches = [kind(kept, 5, 16, tables, format) for kind in (Paged, KernelPaged)]
    for batch in (Batch([0, 7], [33, 5], [0, 0]), Batch([0, 7], [1, 9], [33, 5]), Batch([7, 0], [1, 1], [14, 34])):
        q = torch.randn(batch.tokens, 4, 64, generator=generator).bfloat16()
        k, v = torch.randn(2, batch.tokens, 2, 64, generator=generator).bfloat16()
        out = []
        for cache in caches:
            cache.begin(batch)
            out.append(cache.attend(0, q, k, v).float())
        assert torch.allclose(*out, atol=0.02)
        for ours, theirs in zip(caches[0].store.keys, caches[1].store.keys, strict=True):
            assert torch.equal(ours, theirs)


def test_rows_of_a_contiguous_cache_run_out_in_words():
    cache = Contiguous(rows(), 1, 8)
    with pytest.raises(ValueError, match="has 9 tokens, its row 8"):
        cache.begin(Batch([0], [9], [0]))
    with pytest.raises(ValueError, match="all 1 rows"):
        cache.begin(Batch([1], [1], [0]))
