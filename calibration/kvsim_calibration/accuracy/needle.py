"""A planted fact to be found again: a code word's number, somewhere in a long text, asked for at its end.

The question is part of the prompt, so a policy that drops by attention has seen it when it chooses; the answer is five
digits, decode steps, and counts only as a whole.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvsim_calibration.accuracy.tokenizer import Tokenizer

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
_NAMES = ("Paris", "Anna", "the river", "the garden", "Oslo", "Robert", "the tower", "Maria", "the station", "Tokyo")


@dataclass(frozen=True, slots=True)
class Needle:
    """`tokens`: text with the fact in it, question, answer. `prompt` of them are prefilled: all but the question's last
    token, whose step answers first, and the answer."""

    depth: float
    tokens: list[int]
    prompt: int


def needles(tokenizer: Tokenizer, text: list[int], each: int, prompt: int, seed: int = 0) -> list[Needle]:
    """`each` at every depth, all of one length; facts, numbers and places in the text differ."""
    rng = random.Random(seed)
    found: list[Needle] = []
    for depth in DEPTHS * each:
        name = _NAMES[len(found) % len(_NAMES)]
        code = "".join(rng.choices("123456789", k=5))
        fact = tokenizer.encode(f"\n\nThe secret code of {name} is {code}. Remember it.\n\n")
        question = tokenizer.encode(f"\n\nQuestion: What is the secret code of {name}?\n"
                                    f"Answer: The secret code of {name} is ")  # fmt: skip
        room = prompt + 1 - len(tokenizer.begin) - len(fact) - len(question)
        start = rng.randrange(max(len(text) - room, 1))
        hay = text[start : start + room]
        at = int(len(hay) * depth)
        tokens = tokenizer.begin + hay[:at] + fact + hay[at:] + question
        found.append(Needle(depth, tokens + tokenizer.encode(code), len(tokens) - 1))
    return found
