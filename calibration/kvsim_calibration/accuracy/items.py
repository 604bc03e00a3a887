"""What is measured: pieces of text and planted facts, and which policies run on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InputError
from kvsim_calibration.accuracy.needle import needles
from kvsim_calibration.accuracy.policies import Policy, windows
from kvsim_calibration.accuracy.text import chunks
from kvsim_calibration.accuracy.weights import Loaded

_DECODED = 512


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: `chunks` texts of `context` tokens, of which the last are decoded, and `needles` a depth.

    `others`: contexts in which the window is measured too, on the same decoded tokens of every second text.
    """

    chunks: int
    context: int
    needles: int
    others: tuple[int, ...] = ()

    @property
    def steps(self) -> int:
        """Decoded, and scored, tokens."""
        return min(self.context // 4, _DECODED)

    @property
    def prompt(self) -> int:
        """Prefilled tokens."""
        return self.context - self.steps


FULL = Size(chunks=10, context=2048, needles=2, others=(1024, 4096))
QUICK = Size(chunks=2, context=512, needles=1)


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Tokens that every policy is run on, the first `prompt` as a prompt. `key` goes into each row; a row's `kind`,
    `item` and `context` name it within the run."""

    key: dict[str, Any]
    tokens: list[int]
    prompt: int
    policies: Sequence[Policy]

    @property
    def name(self) -> tuple[str, int, int]:
        return self.key["kind"], self.key["item"], self.key["context"]


def items(loaded: Loaded, text: str, size: Size, policies: Sequence[Policy]) -> list[Item]:
    """Texts, needles, and, if the windows of a quarter are among the policies, texts again with less or more before
    the tokens that are decoded. Which texts does not depend on the policies.

    Raises InputError where the model or the text is too short."""
    longest = max((size.context, *size.others))
    if loaded.max_len < longest:
        raise InputError(f"{loaded.name} takes {loaded.max_len:,} tokens; this measurement needs {longest:,} "
                         "(--context N needs fewer)")  # fmt: skip
    tokens, begin = loaded.tokenizer.encode(text), loaded.tokenizer.begin
    texts = chunks(tokens, size.chunks, longest + 1 - len(begin))
    hidden = needles(loaded.tokenizer, tokens, size.needles, size.prompt)
    found = [_text(size, number, size.context, begin, chunk, policies) for number, chunk in enumerate(texts)]
    for number, needle in enumerate(hidden):
        key = {"kind": "needle", "item": number, "context": size.context, "depth": needle.depth}
        found.append(Item(key, needle.tokens, needle.prompt, policies))
    for context in size.others if set(windows(size.context)) <= set(policies) else ():
        found += [_text(size, number, context, begin, chunk, windows(context))
                  for number, chunk in list(enumerate(texts))[::2]]  # fmt: skip
    return found


def _text(size: Size, number: int, context: int, begin: list[int], chunk: list[int],
          policies: Sequence[Policy]) -> Item:  # fmt: skip
    """The last `context` tokens of a chunk, and one for the last to predict."""
    key = {"kind": "text", "item": number, "context": context}
    return Item(key, begin + chunk[len(begin) - context - 1 :], context - size.steps, policies)
