"""Steps of a live server, timed from outside: what fits the constants of an engine that runs elsewhere.

A decode step is the gap between two tokens while a known batch decodes and no prompt is left; a prompt's steps are the
time to the first token of a request that is alone. No prompt begins like another, so nothing comes from a cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from kvsim.trace.types import make_trace
from kvsim_calibration.engine.constants import Timed
from kvsim_calibration.engine.steps import Step
from kvsim_calibration.measure.client import Load, completion
from kvsim_calibration.measure.http import Server
from kvsim_calibration.measure.prompts import token_ids

DECODES = ((1, 60), (1, 400), (1, 1500), (3, 200), (3, 900), (8, 60), (8, 300), (16, 60), (16, 200))
"""(sequences, prompt tokens of each) of batches that decode"""
PROMPTS = (24, 100, 250, 400, 500, 900, 1500)
"""tokens of prompts that run alone"""
TOKENS = 12
"""that a whole batch decodes together"""
ROUNDS = 3


@dataclass(frozen=True)
class Probe:
    """A server, and the most tokens that it takes into a step."""

    server: Server
    load: Load
    chunk: int

    async def timed(self, tell: Callable[[int, int], None]) -> list[Timed]:
        """Every case, as the median over its rounds. Raises OSError, HttpError."""
        cases = [*(("decode", case) for case in DECODES), *(("prompt", (1, tokens)) for tokens in PROMPTS)]
        found: list[list[Timed]] = [[] for _ in cases]
        seed = 1 << 20
        for turn in range(ROUNDS):
            for at, (kind, (count, tokens)) in enumerate(cases):
                tell(turn * len(cases) + at, ROUNDS * len(cases))
                seed += max(count for count, _ in DECODES)  # no prompt is sent twice
                ask = self.decode if kind == "decode" else self.prompt
                found[at].append(await ask(count, tokens, seed))
        return [sorted(times, key=lambda one: one.ns)[len(times) // 2] for times in found]

    async def decode(self, count: int, tokens: int, seed: int) -> Timed:
        """The median gap of `count` sequences while all of them decode, and what they then attended to."""
        waits = -(-count * tokens // self.chunk)  # steps in which the first prompts decode while others are computed
        times = await asyncio.gather(*(self._stream(tokens, waits + TOKENS, seed + i) for i in range(count)))
        begin, end = max(each[0] for each in times), min(each[-1] for each in times)
        inside = [[at for at in each if begin <= at <= end] for each in times]
        gaps = np.concatenate([np.diff(each) for each in inside])
        middle = (begin + end) / 2
        contexts = tuple(tokens + sum(at <= middle for at in each) for each in times)
        return Timed((Step(contexts),), float(np.median(gaps)))

    async def prompt(self, count: int, tokens: int, seed: int) -> Timed:
        """The time to the first token of a request that is alone: its prompt's steps."""
        del count
        begin = time.monotonic_ns()
        first = (await self._stream(tokens, 1, seed))[0]
        return Timed(tuple(chunked(tokens, self.chunk)), float(first - begin))

    async def _stream(self, tokens: int, output: int, seed: int) -> list[int]:
        """Monotonic ns of each piece of a request's answer."""
        alone = make_trace("probe", "synthetic", [0], [tokens], [output])
        body = self.load.body(token_ids(alone, 0, self.load.vocab, seed), output)
        async with asyncio.timeout(self.load.timeout_s), self.server.request("POST", "/v1/completions", body) as answer:
            return [at async for at, _, is_token in completion(answer) if is_token]


def chunked(tokens: int, chunk: int) -> Iterable[Step]:
    """The steps of a prompt that is computed `chunk` tokens at a time."""
    for begin in range(0, tokens, chunk):
        yield Step((), ((min(chunk, tokens - begin), begin),))
