"""Decode attention on the CPU runner: the grid against float64, torch's SDPA, and what the grid does not reach."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kvsim_kernels import Cache, ContiguousCache, PagedCache, decode_attention, grid
from kvsim_kernels.caches import BLOCK_SIZES, HEAD_SIZES, Format
from kvsim_kernels.decode import Path as Kind
from kvsim_kernels.decode import default_splits, plan, split_count, workspace_size
from kvsim_kernels.grid import Case, decode, relative_error
from kvsim_kernels.grid.decode import Inputs, inputs
from kvsim_kernels.reference import decode as reference
from kvsim_kernels.reference.cache import numbers, sequence

CPU = torch.device("cpu")
BF16, FP16 = torch.bfloat16, torch.float16
PATHS: tuple[Kind, ...] = ("cuda-cores", "tensor-cores")


def run(given: Inputs, **options: object) -> torch.Tensor:
    return decode_attention(given.q, given.cache, given.lengths, block_table=given.block_table, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", list(decode.cases(CPU, wide=False)), ids=lambda case: f"{case.kernel}: {case.case}")
def test_agrees_with_float64(case: Case) -> None:
    assert case.run() <= case.bound


def test_every_plan_is_among_the_kernels_that_are_compiled_for_every_chip() -> None:
    known = set(decode.variants())
    for dtype, head_dim, group in itertools.product((BF16, FP16), HEAD_SIZES, (*grid.GROUPS, 17, 128)):
        own: Format = "bf16" if dtype == BF16 else "fp16"
        stored = [(own, 0), *((format, size) for format, size in decode.FORMATS if not size or head_dim % size == 0)]
        plans = [plan(dtype, format, head_dim, group, size, "auto") for format, size in stored]
        assert {one.kernel for one in (*plans, plan(dtype, own, head_dim, group, 0, "cuda-cores"))} <= known


def test_the_combined_cases_leave_no_pair_out() -> None:
    """Every kernel and format meets every head size in every layout, both dtypes, and group sizes 1 to 16 and 64."""
    found = list(decode.combined())
    for format, int4_group in [(None, 0), *decode.FORMATS]:
        mine = [case for case in found if case[1:3] == (format, int4_group) and case[0] == "tensor-cores"]
        heads = [head_dim for head_dim in HEAD_SIZES if not int4_group or head_dim % int4_group == 0]
        assert {case[3:5] for case in mine} == set(itertools.product(heads, (0, *BLOCK_SIZES)))
        assert {(case[3], case[5]) for case in mine} == set(itertools.product(heads, (BF16, FP16)))
        assert {(case[4], case[5]) for case in mine} == set(itertools.product((0, *BLOCK_SIZES), (BF16, FP16)))
        assert len({case[6] for case in mine}) == min(17, len(mine))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wide_grid_agrees_with_float64() -> None:
    assert [case.case for case in decode.cases(CPU, wide=True) if not case.run() <= case.bound] == []


@pytest.mark.parametrize("path", PATHS)
def test_agrees_with_torch(path: Kind) -> None:
    """A witness that shares no code with the float64 reference."""
    given = inputs([5, 77, 160], 2, 4, 128, BF16, block_size=16)
    held = numbers(given.cache)
    got = run(given, kernel=path, splits=2)
    for i, length in enumerate(given.lengths.tolist()):
        rows = (sequence(side, given.cache, i, length, given.block_table) for side in held)
        k, v = (torch.from_numpy(side).transpose(0, 1) for side in rows)
        want = torch.nn.functional.scaled_dot_product_attention(
            given.q[i, :, None].double(), k.repeat_interleave(4, 0), v.repeat_interleave(4, 0)
        )
        assert relative_error(got[i], want[:, 0].numpy()) < 5e-3


@pytest.mark.parametrize(("path", "format"), [(PATHS[0], "bf16"), (PATHS[1], "bf16"), (PATHS[1], "int4")])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_poisoned_sequence_spoils_no_other(path: Kind, format: Format, poison: float) -> None:
    given = inputs([40, 40, 40], 1, 8, 128, BF16, format)
    clean = run(given, kernel=path, splits=2)
    for tensor in (given.cache.scales,) if given.cache.scales is not None else (given.cache.keys, given.cache.values):
        tensor[1, 13] = poison
    spoilt = run(given, kernel=path, splits=2)
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])
    assert not torch.isfinite(spoilt[1]).all()
    assert np.isnan(reference.decode_attention(given.q, given.cache, given.lengths)[1]).any()


@pytest.mark.parametrize("path", PATHS)
def test_a_poisoned_query_spoils_its_head_alone(path: Kind) -> None:
    given = inputs([40], 1, 8, 64, BF16)
    clean = run(given, kernel=path, splits=1)
    given.q[0, 3, 5] = float("nan")
    spoilt = run(given, kernel=path, splits=1)
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(spoilt[0, others], clean[0, others])
    assert torch.isnan(spoilt[0, 3]).all()


@pytest.mark.parametrize("path", PATHS)
def test_scores_of_minus_infinity_weigh_nothing(path: Kind) -> None:
    """A warp whose tokens all score -infinity must not turn the others' result into NaN."""
    given = inputs([64], 1, 1, 64, BF16)
    given.q[:] = 1
    given.cache.keys[0, :16] = -float("inf")
    want = reference.decode_attention(given.q, given.cache, given.lengths)
    assert np.isfinite(want).all()
    assert relative_error(run(given, kernel=path, splits=1), want) < 5e-3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("splits", [1, 4])
def test_without_tokens_the_output_is_zero(path: Kind, splits: int) -> None:
    given = inputs([0, 0], 2, 2, 64, BF16, block_size=8)
    out = torch.full_like(given.q, float("nan"))
    assert run(given, kernel=path, splits=splits, out=out) is out
    assert torch.equal(out, torch.zeros_like(out))


def test_an_empty_batch_is_an_empty_answer() -> None:
    cache = PagedCache.zeros(4, 16, 2, 64)
    q, nothing = torch.zeros(0, 4, 64, dtype=BF16), torch.zeros(0, dtype=torch.int32)
    assert decode_attention(q, cache, nothing, block_table=nothing.view(0, 1)).shape == (0, 4, 64)


def test_the_number_of_splits_does_not_change_the_answer() -> None:
    given = inputs([300, 17, 1], 2, 4, 128, FP16, block_size=16)
    one = run(given, splits=1)
    for splits in (2, 7, 31):
        assert relative_error(run(given, splits=splits), one.double().numpy()) < 1e-3


@pytest.mark.parametrize(("format", "paths"), [("bf16", PATHS), ("int8", PATHS[1:]), ("fp8_tensor", PATHS[1:])])
def test_offsets_beyond_32_bits(tmp_path: Path, format: Format, paths: tuple[Kind, ...]) -> None:
    """A cache of 5 or 10 GB in sparse files, of which only the blocks used exist."""
    small = inputs([100, 40], 1, 4, 64, BF16, format, block_size=128)
    blocks = 310_000
    assert small.block_table is not None
    far = torch.arange(blocks - small.cache.keys.shape[0], blocks, dtype=torch.int32)

    def spread(name: str, tensor: torch.Tensor) -> torch.Tensor:
        row = tensor[0].numel()
        big = torch.from_file(str(tmp_path / name), shared=True, size=blocks * row, dtype=tensor.dtype)
        big = big.view(blocks, *tensor.shape[1:])
        big[blocks - len(tensor) :].copy_(tensor)
        return big

    scales = None if small.cache.scales is None else spread("scales", small.cache.scales)
    keys, values = spread("keys", small.cache.keys), spread("values", small.cache.values)
    huge = replace(small.cache, keys=keys, values=values, scales=scales)
    assert huge.keys.numel() > 2**31
    table = far[small.block_table.long()]
    for path in paths:
        got = decode_attention(small.q, huge, small.lengths, block_table=table, kernel=path, splits=2)
        assert torch.equal(got, run(small, kernel=path, splits=2))


def test_splits_fill_the_multiprocessors() -> None:
    chosen = plan(BF16, "bf16", 128, 4, 0, "auto")
    for batch in (1, 2, 7, 33, 200, 5000):
        splits = split_count(chosen, batch, 8, 4, 32_768, multiprocessors=132)
        blocks, places = batch * 8 * splits, 264
        assert blocks / places / -(-blocks // places) >= 0.7 or splits == 128
    assert split_count(chosen, 1, 8, 4, longest=10, multiprocessors=132) == 1       # nothing to cut
    assert split_count(chosen, 0, 8, 4, longest=10, multiprocessors=132) == 1
    given = inputs([4000], 2, 4, 128, BF16)
    assert default_splits(given.q, given.cache, 4000) == 1                          # the CPU runs one block at a time
    assert workspace_size(2, 8, 128, 1) == 0 and workspace_size(2, 8, 128, 3) == 2 * 8 * 3 * 129


def zeros(format: Format = "bf16") -> ContiguousCache:
    return ContiguousCache.zeros(1, 8, 2, 64, format)


def bad(change: str) -> tuple[Inputs, dict[str, object]]:
    """Arguments with one thing wrong."""
    given = inputs([20, 33], 2, 2, 64, BF16, block_size=16)
    assert given.block_table is not None
    options: dict[str, object] = {}
    match change:
        case "dtype":
            given.q = given.q.float()
        case "other dtype":
            given.q = given.q.half()
        case "not contiguous":
            given.q = given.q.transpose(0, 1).contiguous().transpose(0, 1)
        case "head size":
            given.q = given.q[:, :, :32].contiguous()
        case "heads":
            given.q = given.q[:, :3].contiguous()
        case "device":
            given.lengths = given.lengths.to("meta")
        case "block id":
            given.block_table[1, 2] = given.cache.keys.shape[0]
        case "negative block id":
            given.block_table[0, 0] = -1
        case "length":
            given.lengths[0] = 49
        case "negative length":
            given.lengths[0] = -1
        case "length dtype":
            given.lengths = given.lengths.long()
        case "no table":
            given.block_table = None
        case "table for contiguous":
            given.cache = ContiguousCache.zeros(2, 48, 2, 64)
        case "batch":
            given.block_table = given.block_table[:1]
        case "out":
            options["out"] = torch.empty(2, 4, 32, dtype=BF16)
        case "workspace":
            options.update(workspace=torch.empty(10), splits=2)
        case "splits":
            options["splits"] = 0
        case "kernel":
            options["kernel"] = "fast"
        case "quantized on CUDA cores":
            given.cache = PagedCache.zeros(9, 16, 2, 64, "int8")
            options["kernel"] = "cuda-cores"
    return given, options


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("dtype", r"q is torch.float32; torch.bfloat16 or torch.float16 is needed"),
        ("other dtype", r"q is torch.float16, the cache torch.bfloat16"),
        ("not contiguous", r"q is not contiguous"),
        ("head size", r"q has shape \[2, 4, 32\]; \[any, any, 64\] is needed"),
        ("heads", r"q has 3 heads, which is no multiple of the cache's 2"),
        ("device", r"lengths is on meta"),
        ("block id", r"block_table\[1, 2\] is 9; the cache has blocks 0 to 8"),
        ("negative block id", r"block_table\[0, 0\] is -1"),
        ("length", r"lengths\[0\] is 49; the table has room for 0 to 48 tokens"),
        ("negative length", r"lengths\[0\] is -1"),
        ("length dtype", r"lengths is torch.int64; torch.int32 is needed"),
        ("no table", r"a PagedCache needs block_table"),
        ("table for contiguous", r"a ContiguousCache takes no block_table"),
        ("batch", r"block_table has shape \[1, 3\]; \[2, any\] is needed"),
        ("out", r"out has shape \[2, 4, 32\]"),
        ("workspace", r"workspace has 10 elements; 1040 are needed for 2 splits"),
        ("splits", r"splits is 0"),
        ("kernel", r"kernel is 'fast'"),
        ("quantized on CUDA cores", r"a cache of format int8 is decoded on the tensor cores only"),
    ],
)
def test_bad_arguments_are_refused_before_the_launch(change: str, message: str) -> None:
    given, options = bad(change)
    with pytest.raises(ValueError, match=message):
        run(given, **options)


def test_contents_are_not_checked_when_asked_not_to() -> None:
    given = inputs([20, 33], 2, 2, 64, BF16, block_size=16)
    assert given.block_table is not None
    given.block_table[0, 2] = 10**6                     # past the length of 20: never read
    assert torch.equal(run(given, check_contents=False), run(given))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContiguousCache.zeros(1, 8, 1, 80), r"head size 80 is not built, only 64, 96, 128, 256"),
        (lambda: ContiguousCache.zeros(1, 8, 0, 64), r"ContiguousCache has no KV heads"),
        (lambda: PagedCache.zeros(1, 24, 1, 64), r"a block size of 24 is not built, only 8, 16, 32, 64, 128"),
        (lambda: ContiguousCache(torch.zeros(1, 8, 1, 64), torch.zeros(1, 8, 1, 64)), r"keys are torch.float32"),
        (lambda: ContiguousCache(torch.zeros(8, 1, 64).half(), torch.zeros(8, 1, 64).half()), r"four dimensions"),
        (lambda: replace(zeros("int8"), scales=None), r"scales are missing"),
        (lambda: replace(zeros("int4"), scales=torch.zeros(1)), r"int4 needs \[1, 8, 2\]"),
        (lambda: replace(zeros(), scales=torch.zeros(1)), r"keys have no scales"),
        (lambda: replace(zeros(), values=torch.zeros(1, 8, 2, 64).half()), r"values: torch.bfloat16"),
        (lambda: replace(zeros(), keys=torch.zeros(1, 8, 64, 2, dtype=BF16).mT), r"keys are not contiguous"),
    ],
)
def test_a_cache_says_what_is_wrong_with_it(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_bytes_per_token_count_the_scales() -> None:
    def size(format: Format, group: int = 32) -> int:
        return ContiguousCache.zeros(2, 16, 4, 128, format, group=group).bytes_per_token

    assert size("bf16") == size("fp16") == 4 * 2 * 256
    assert size("int8") == size("fp8") == 4 * 2 * (128 + 2)
    assert size("int4", 32) == 4 * 2 * (64 + 4 * 4) and size("int4", 128) == 4 * 2 * (64 + 4)


def test_caches_are_what_they_say() -> None:
    assert [f.name for f in dataclasses.fields(Cache)] == ["keys", "values", "scales", "key_scale", "value_scale"]
    assert inputs([3], 1, 1, 64, BF16, "fp8_tensor").cache.format == "fp8_tensor"
    assert inputs([3], 1, 1, 64, BF16, "int4", int4_group=64).cache.group == 64
