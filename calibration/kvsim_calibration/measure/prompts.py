"""Prompts of the traced lengths, whose beginnings are shared where the trace says so.

A prompt is a list of token ids: its length is exact, and equal block ids give equal ids, so a server's prefix cache
finds what the trace's would. As text it is as many short words, for servers that take no ids; its length is then about
right, and what the server counted is recorded.
"""

from __future__ import annotations

import numpy as np

from kvsim.trace import Trace
from kvsim.trace.types import Int

LOW = 1000
"""ids below are control tokens, bytes and single characters in common vocabularies"""
_WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not",
          "he", "this", "are", "or", "his", "from", "at", "which", "but", "have", "an", "had", "they", "you", "were",
          "one")  # fmt: skip


def token_ids(trace: Trace, row: int, vocab: int, seed: int = 0) -> Int:
    """Token ids of one row's prompt, int64[prompt_tokens], in [LOW, vocab)."""
    length = int(trace.prompt_tokens[row])
    parts: list[Int] = []
    begin = 0
    for block, end in zip(trace.blocks(row).tolist(), trace.ends(row).tolist(), strict=True):
        if begin >= length:
            break
        parts.append(_draw((seed, 1, block), end - begin, vocab)[: length - begin])
        begin = end
    if begin < length:
        parts.append(_draw((seed, 2, row), length - begin, vocab))
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def text(ids: Int) -> str:
    """The same prompt as words: one common English word an id."""
    return " ".join(_WORDS[i % len(_WORDS)] for i in ids.tolist())


def _draw(key: tuple[int, ...], count: int, vocab: int) -> Int:
    return np.random.default_rng(key).integers(LOW, max(LOW + 1, vocab), count, dtype=np.int64)
