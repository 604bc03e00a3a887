"""Single steps of the engine, timed: a batch as it would be after a while, one turn of the loop, again and again."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from kvsim.cache.base import Sequence
from kvsim.cost import StepShape
from kvsim.engine.decode_set import NEVER
from kvsim.trace.types import make_trace
from kvsim_calibration.engine.blocks import BlockPool
from kvsim_calibration.engine.caches import Paged
from kvsim_calibration.engine.engine import Engine

WARM = 1
"""turns of a case before those that count, in every round"""


@dataclass(frozen=True)
class Step:
    """`contexts`: tokens in the cache of each decoding sequence; `chunks`: (tokens, context) of prompts that end with
    this step."""

    contexts: tuple[int, ...] = ()
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def kind(self) -> str:
        return "mixed" if self.contexts and self.chunks else "decode" if self.contexts else "prefill"

    @property
    def name(self) -> str:
        parts = []
        if self.contexts:
            same = len(set(self.contexts)) == 1
            lengths = f"{self.contexts[0]:,}" if same else f"{min(self.contexts):,}–{max(self.contexts):,}"
            parts.append(f"{len(self.contexts)} decode at {lengths}")
        parts += [f"{tokens:,} tokens after {context:,}" for tokens, context in self.chunks]
        return " + ".join(parts)

    @property
    def tokens(self) -> int:
        """Tokens of KV that it needs room for, with some turns to spare."""
        return sum(context + 64 for context in self.contexts) + sum(sum(chunk) + 32 for chunk in self.chunks)

    def shape(self) -> StepShape:
        """As the cost model sees it."""
        n, attended = len(self.contexts), sum(self.contexts) + len(self.contexts)
        return StepShape(
            decode=n, attended=(attended,) if n else (), longest=(max(self.contexts) + 1,) if n else (),
            growing=(n,) if n else (), longest_grows=(True,) if n else (), chunks=self.chunks,
            sampled=n + len(self.chunks),
        )  # fmt: skip


def time_step(engine: Engine, step: Step, repeats: int) -> list[int]:
    """ns of each of `repeats` turns of `engine`, whose memory is paged and filled with whatever it holds."""
    assert isinstance(engine.kv, BlockPool)
    decoding, chunks, turns = len(step.contexts), len(step.chunks), WARM + repeats
    rows = decoding + chunks * turns
    engine.start(make_trace("steps", "made", [NEVER] * rows, [1] * rows, [1] * rows))  # none of which ever arrives
    for row, context in enumerate(step.contexts):
        _install(engine, row, context, 0)
    found = []
    for turn in range(turns):
        for at, (tokens, context) in enumerate(step.chunks):
            _install(engine, decoding + turn * chunks + at, context, tokens)
        begin = time.perf_counter_ns()
        plan = engine.turn()
        found.append(time.perf_counter_ns() - begin)
        assert [tokens for _, tokens, _ in plan.chunks] == [1] * decoding + [tokens for tokens, _ in step.chunks]
        _remove(engine, decoding)
    _remove(engine, 0)
    return found[WARM:]


def _install(engine: Engine, row: int, context: int, pending: int) -> None:
    """A running sequence with `context` tokens in the cache: `pending` of its prompt are left, or, where none is, it
    has its first token. It never ends."""
    seq = Sequence(row, context + pending, NEVER)
    assert engine.kv.admit(seq, context), "the pool is too small for this step"
    seq.computed, seq.generated = context, int(not pending)
    vocab, length = engine.model.dims.vocab, context + max(1, pending)
    engine.tokens[row] = np.random.default_rng(row).integers(vocab, size=length).tolist()
    engine.state.run(seq)


def _remove(engine: Engine, keep: int) -> None:
    """Take all but the first `keep` sequences out."""
    for seq in engine.state.partial[keep:]:
        engine.kv.release(seq, finished=True)
        del engine.tokens[seq.row]
    del engine.state.partial[keep:]


def fill(engine: Engine) -> None:
    """Random rows in the whole cache, as there would be."""
    assert isinstance(engine.cache, Paged)
    store = engine.cache.store
    for tensor in (*store.keys, *store.values):
        tensor.normal_()
