"""Dimensions of a tiny Llama, and a tokenizer for it: for tests of `kvsim accuracy`."""

from __future__ import annotations

from kvsim_calibration.engine.model import Dims

PROMPT, STEPS = 40, 24
DIMS = Dims(layers=3, hidden=48, heads=4, kv_heads=2, head_dim=32, inter=64, vocab=64)


class Letters:
    """A token a letter."""

    def __init__(self, *begin: int) -> None:
        self.begin = list(begin)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) % DIMS.vocab for letter in text]
