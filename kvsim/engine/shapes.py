"""The coming step as the cost model sees it: from the decode set and a plan to a StepShape."""

from __future__ import annotations

from kvsim.cache.base import Sequence
from kvsim.cache.retention import Retention
from kvsim.cost.shape import StepShape
from kvsim.engine.decode_set import NEVER, DecodeSet

Chunk = tuple[Sequence, int, int]


def decode_shape(decode: DecodeSet, retention: Retention, padding: int) -> StepShape:
    """One token of every decoding sequence; `padding` empty slots are computed beside them (static batching)."""
    n, step, groups = decode.count, decode.step, decode.groups
    if len(groups) == 1 and not groups[0].window:  # the usual case, without a detour
        group = groups[0]
        attended = group.grow_base + n * (step + 1)
        shape = StepShape(n + padding, (attended,), (group.longest(step),), (n,), (True,), (), n)
    else:
        shape = StepShape(
            n + padding,
            tuple([group.attended(step) for group in groups]),
            tuple([group.longest(step) for group in groups]),
            tuple([group.growing for group in groups]),
            tuple([not group.saturated or not group.window for group in groups]),
            (),
            n,
        )
    if retention.scores_decodes:
        shape.scored = shape.attended[0]
    return shape


def add_chunks(shape: StepShape, chunks: list[Chunk], retention: Retention, decode: DecodeSet) -> int:
    """Add planned chunks to `shape`; returns the prefill tokens among them."""
    prefill: list[tuple[int, int]] = []
    singles: list[int] = []
    tokens_in_all = 0
    for seq, tokens, context in chunks:
        last = context + tokens == seq.prompt + seq.generated
        if tokens == 1 and seq.generated and last:  # a decode that was planned one by one
            singles.append(min(context + 1 - seq.dropped, retention.cap))
            if retention.scores_decodes:
                shape.scored += singles[-1]
        else:
            prefill.append((tokens, min(context, retention.cap) if retention.rolls else context))
            tokens_in_all += tokens
            shape.scored += retention.scored(tokens, context, last)
        if last:
            shape.sampled += 1
    shape.chunks = tuple(prefill)
    if singles:
        _add_singles(shape, singles, [group.window or NEVER for group in decode.groups])
    return tokens_in_all


def _add_singles(shape: StepShape, lengths: list[int], windows: list[int]) -> None:
    none = (0,) * len(windows)
    shape.decode += len(lengths)
    attended = zip(shape.attended or none, windows, strict=True)
    longest = zip(shape.longest or none, windows, strict=True)
    shape.attended = tuple([before + sum(min(n, window) for n in lengths) for before, window in attended])
    shape.longest = tuple([max(before, min(max(lengths), window)) for before, window in longest])


def uncached_shape(decode: DecodeSet, steps: int, chunks: list[Chunk]) -> StepShape:
    """Without a cache every running sequence is computed from its first token on, in every step."""
    whole = [(seq.tokens, 0) for seq, _, _ in chunks]
    if steps:
        whole += sorted((seq.base + decode.step + 1, 0) for seq in decode.sequences)
    return StepShape(chunks=tuple(whole), sampled=len(whole))
