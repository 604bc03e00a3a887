"""What is measured: pieces of text, streams and planted facts, and which policies run on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InputError
from kvsim_calibration.accuracy.needle import needles
from kvsim_calibration.accuracy.policies import Policy, windows
from kvsim_calibration.accuracy.text import Text, chunks
from kvsim_calibration.accuracy.weights import Loaded

_DECODED = 512
_CONTEXTS = (2048, 8192)
_GOLDEN = (5**0.5 - 1) / 2
"""by its multiples' fractions, the first pieces are spread over a text however many they are"""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: `chunks` texts of `context` tokens, of which the last are decoded, `needles` a depth, and
    `streams` pieces of each text, read in each of the `contexts`."""

    chunks: int
    context: int
    needles: int
    lead: int = 0
    """tokens left out before each text: so texts are those of earlier tables, which had longer contexts too"""
    streams: int = 0
    contexts: tuple[int, ...] = _CONTEXTS

    @property
    def steps(self) -> int:
        """Decoded, and scored, tokens."""
        return min(self.context // 4, _DECODED)

    @property
    def prompt(self) -> int:
        """Prefilled tokens."""
        return self.context - self.steps


FULL = Size(chunks=10, context=2048, needles=2, lead=2048, streams=3)
QUICK = Size(chunks=2, context=512, needles=1)


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """Tokens that every policy is run on, the first `prompt` as a prompt; the last `scored` of the steps behind it
    count. `key` goes into each row; a row's `kind`, `item`, `context` and `text` name it within the run."""

    key: dict[str, Any]
    tokens: list[int]
    prompt: int
    policies: Sequence[Policy]
    scored: int

    @property
    def name(self) -> tuple[Any, ...]:
        return self.key["kind"], self.key["item"], self.key["context"], self.key.get("text")


def items(loaded: Loaded, texts: Sequence[Text], size: Size, policies: Sequence[Policy]) -> list[Item]:
    """Streams of all texts if the windows of a quarter are among the policies, then pieces of the first text, and facts
    planted in it. Which pieces does not depend on the policies.

    Raises InputError where the model or the text is too short."""
    if loaded.max_len < size.context:
        raise InputError(f"{loaded.name} takes {loaded.max_len:,} tokens; this measurement needs {size.context:,} "
                         "(--context N needs fewer)")  # fmt: skip
    tokens, begin = loaded.tokenizer.encode(texts[0].text), loaded.tokenizer.begin
    pieces = chunks(tokens, size.chunks, size.lead + size.context + 1 - len(begin))
    found = list(_streams(loaded, texts, size)) if set(windows(size.context)) <= set(policies) else []
    for number, piece in enumerate(pieces):
        key = {"kind": "text", "item": number, "context": size.context}
        found.append(Item(key, begin + piece[size.lead :], size.prompt, policies, size.steps))
    for number, needle in enumerate(needles(loaded.tokenizer, tokens, size.needles, size.prompt)):
        key = {"kind": "needle", "item": number, "context": size.context, "depth": needle.depth}
        found.append(Item(key, needle.tokens, needle.prompt, policies, len(needle.tokens) - 1 - needle.prompt))
    return found


def _streams(loaded: Loaded, texts: Sequence[Text], size: Size) -> Iterator[Item]:
    """Texts that a window reads from their first token on; at the end it holds a quarter of them. Until it is full it
    is the full cache: that much is the prompt. The last quarter counts, where the full cache holds three to four times
    as much. A shorter context is the end of a longer one.

    Contexts that the model or a text does not have are left out. More streams are those of fewer, and others."""
    begin = loaded.tokenizer.begin
    for text in texts if size.streams else ():
        tokens = loaded.tokenizer.encode(text.text)
        contexts = [n for n in size.contexts if n <= loaded.max_len and n < len(tokens) + len(begin)]
        if not contexts:
            continue
        longest = max(contexts) + 1 - len(begin)
        pieces = chunks(tokens, len(tokens) // longest, longest)
        for number in sorted(range(len(pieces)), key=lambda i: i * _GOLDEN % 1)[: size.streams]:
            for context in sorted(contexts, reverse=True):
                key = {"kind": "stream", "item": number, "context": context, "text": text.name}
                yield Item(key, begin + pieces[number][len(begin) - context - 1 :], context // 4, windows(context),
                           context // 4)  # fmt: skip
