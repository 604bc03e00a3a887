"""Greedy generation of one answer, without a scheduler: the truth that the engine is held to."""

from __future__ import annotations

import math
import time

import torch

from kvsim_calibration.engine.caches import Batch, Cache, Uncached
from kvsim_calibration.engine.model import Llama


def generate(
    model: Llama, prompt: list[int], count: int, cache: Cache | None = None, limit_ns: float = math.inf
) -> tuple[list[int], list[int]]:
    """(`count` tokens after `prompt`, ns from the beginning to each of them): fewer where `limit_ns` is over before.
    Without `cache` every token costs a forward over all before it."""
    tokens = list(prompt)
    ends: list[int] = []
    computed = 0
    begin = time.perf_counter_ns()
    for _ in range(count):
        new = tokens[computed:]
        batch = Batch([0], [len(new)], [computed])
        logits = model(torch.tensor(new, device=model.device), batch, cache or Uncached())
        tokens.append(int(logits[0].argmax()))  # waits for a GPU
        ends.append(time.perf_counter_ns() - begin)
        if ends[-1] > limit_ns:
            break
        if cache is not None:
            computed = len(tokens) - 1
    if cache is not None:
        cache.drop(0)
    return tokens[len(prompt) :], ends


def margins(model: Llama, tokens: list[int]) -> torch.Tensor:
    """How far the best logit is above the second after each token, float32 [tokens]: a tie is a margin of rounding."""
    logits = model(torch.tensor(tokens, device=model.device), Batch([0], [len(tokens)], [0]), Uncached(), slice(None))
    best = logits.float().topk(2, -1).values
    return best[:, 0] - best[:, 1]
