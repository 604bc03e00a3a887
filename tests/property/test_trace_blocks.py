"""Block ids: merging keeps every key one to one, and runs are the keys of a naive walk over tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.trace import Trace, make_trace
from kvsim.trace.chain import Blocks, chain, merge, runs
from kvsim.trace.stats import reusable_share

Ids = list[list[int]]


def flat(rows: Ids) -> tuple[np.ndarray, np.ndarray]:
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return np.array([i for row in rows for i in row], np.int64), start


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Rows whose ids are chained: paths in a tree of blocks, of either rule, some into the answer."""
    size = draw(st.sampled_from([1, 3, 16]))
    rule = draw(st.sampled_from(["ceil", "floor"]))
    contents = draw(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=8))
    ids, start = flat(contents)
    chained = chain(ids, start)
    prompt, output = [], []
    for row in contents:
        if rule == "ceil":
            prompt.append(max(1, len(row) * size - draw(st.integers(0, size - 1))))
            output.append(draw(st.integers(0, 2 * size)))
        else:
            total = len(row) * size + draw(st.integers(0, size - 1))
            prompt.append(draw(st.integers(1, max(1, total))))
            output.append(max(0, total - prompt[-1]))
    return make_trace(
        "t", "t", range(len(contents)), prompt, output,
        block_ids=chained, block_start=start, block_size=size, block_rule=rule,
    )  # fmt: skip


def merged(trace: Trace) -> Trace:
    blocks = Blocks.of_size(
        trace.block_ids, trace.block_start, trace.block_size, trace.block_rule, trace.prompt_tokens
    )
    new, was_chained = merge(blocks, trace.prompt_tokens)
    assert was_chained
    return trace.with_columns(block_ids=new.ids, block_start=new.start, block_end=new.ends)


def keys(trace: Trace, row: int, cache_block: int) -> list[tuple[int, int]]:
    """The definition, token by token: a cache block that ends at e has the key (id of the block of token e − 1, e)."""
    ids, ends = trace[row].block_ids, trace.ends(row).tolist()
    found = []
    for end in range(cache_block, int(trace.prompt_tokens[row] + trace.output_tokens[row]) + 1, cache_block):
        holder = next((i for i, stop in zip(ids, ends, strict=True) if end <= stop), None)
        if holder is None:
            break
        found.append((holder, end))
    return found


def from_runs(trace: Trace, row: int, cache_block: int) -> list[tuple[int, int]]:
    found = runs(trace, row, cache_block)
    assert [first for _, first, _ in found] == [0, *np.cumsum([count for _, _, count in found])][:-1] if found else True
    return [(i, (first + k + 1) * cache_block) for i, first, count in found for k in range(count)]


@given(traces(), st.integers(1, 40))
def test_runs_are_the_keys_of_the_definition(trace: Trace, cache_block: int) -> None:
    for row in range(len(trace)):
        assert from_runs(trace, row, cache_block) == keys(trace, row, cache_block)


@settings(max_examples=300)
@given(traces(), st.integers(1, 40))
def test_merging_keeps_keys_one_to_one(trace: Trace, cache_block: int) -> None:
    new = merged(trace)
    partner: dict[tuple[int, int], tuple[int, int]] = {}
    back: dict[tuple[int, int], tuple[int, int]] = {}
    for row in range(len(trace)):
        before, after = keys(trace, row, cache_block), keys(new, row, cache_block)
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            assert partner.setdefault(one, other) == other and back.setdefault(other, one) == one


@given(traces())
def test_merging_leaves_no_two_blocks_that_never_occur_apart(trace: Trace) -> None:
    new = merged(trace)
    assert len(new.block_ids) <= len(trace.block_ids)
    assert set(new.block_ids.tolist()) == set(range(len(set(new.block_ids.tolist()))))
    rows = [new[row] for row in range(len(new))]
    for request in rows:
        ends = new.ends(request.id).tolist()
        for (one, other), end in zip(pairwise(request.block_ids), ends, strict=False):
            apart = [r for r in rows if one in r.block_ids and other not in r.block_ids]
            at_a_prompt_end = any(
                r.prompt_tokens < end + trace.block_size and one in r.block_ids for r in rows
            )
            assert apart or at_a_prompt_end


@given(traces())
def test_merging_keeps_the_reusable_share(trace: Trace) -> None:
    assert reusable_share(merged(trace)) == reusable_share(trace)
    assert reusable_share(merged(trace), answers=True) == reusable_share(trace, answers=True)


@given(traces())
def test_the_reusable_share_is_that_of_a_naive_cache(trace: Trace) -> None:
    seen: set[int] = set()
    hit = 0
    for row, request in enumerate(trace):
        here = 0
        for i, end in zip(request.block_ids, trace.ends(row).tolist(), strict=True):
            if end > request.prompt_tokens:
                break
            if i in seen:
                here = end
            seen.add(i)
        hit += here
    share = reusable_share(trace)
    assert share is None if not trace.has_ids else share == hit / trace.prompt_tokens.sum()


@given(st.lists(st.lists(st.integers(-5, 2**62), max_size=5), min_size=1, max_size=8))
def test_ids_of_contents_are_chained(rows: Ids) -> None:
    ids, start = flat(rows)
    prompt = np.diff(start) * 4 + 1
    new, _ = merge(Blocks.of_size(ids, start, 4, "floor", prompt), prompt)
    trace = make_trace(
        "t", "t", range(len(rows)), prompt, [0] * len(rows),
        block_ids=new.ids, block_start=new.start, block_end=new.ends,
    )  # fmt: skip
    for one, first in enumerate(rows):
        for other, second in enumerate(rows):
            common = next((k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
            common = min(len(first), len(second)) if common is None else common
            shared = set(keys(trace, one, 4)) & set(keys(trace, other, 4))
            assert len(shared) == common
