"""A whole measurement: chunks of text and needles, every policy on each, resumed where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.errors import InputError
from kvsim_calibration.accuracy import measure
from kvsim_calibration.accuracy.evict import check
from kvsim_calibration.accuracy.needle import needles
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy
from kvsim_calibration.accuracy.store import Rows
from kvsim_calibration.accuracy.text import chunks
from kvsim_calibration.accuracy.weights import Loaded


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured: `chunks` texts of `context` tokens, the last quarter decoded, and `needles` a depth."""

    chunks: int
    context: int
    needles: int

    @property
    def steps(self) -> int:
        """Decoded, and scored, tokens."""
        return self.context // 4

    @property
    def prompt(self) -> int:
        """Prefilled tokens."""
        return self.context - self.steps


FULL = Size(chunks=12, context=2048, needles=2)
QUICK = Size(chunks=2, context=512, needles=1)


@dataclass(frozen=True, slots=True)
class Item:
    """Tokens that every policy is run on. `key` names it within the run."""

    key: dict[str, Any]
    tokens: list[int]
    prompt: int


def items(loaded: Loaded, text: str, size: Size) -> list[Item]:
    """The texts, then the needles. Raises InputError where the model or the text is too short."""
    if loaded.max_len < size.context:
        raise InputError(f"{loaded.name} takes {loaded.max_len:,} tokens; this measurement needs {size.context:,} "
                         "(--context N needs fewer)")  # fmt: skip
    tokens = loaded.tokenizer.encode(text)
    texts = chunks(tokens, size.chunks, size.context + 1)
    hidden = needles(loaded.tokenizer, tokens, size.needles, size.prompt)
    return [
        *(Item({"kind": "text", "item": i}, chunk, size.prompt) for i, chunk in enumerate(texts)),
        *(Item({"kind": "needle", "item": i, "depth": n.depth}, n.tokens, n.prompt) for i, n in enumerate(hidden)),
    ]


def run(loaded: Loaded, work: Sequence[Item], policies: Sequence[Policy], rows: Rows,
        update: Callable[[float, float], None]) -> list[dict[str, Any]]:  # fmt: skip
    """All rows of these items and policies; those that `rows` has already are not measured again."""
    for policy in policies:
        check(policy.retention)
    names = [policy.name for policy in (FULL_CACHE, *policies)]
    done = {(row["kind"], row["item"], row["policy"]) for row in rows.done}
    finished, total = 0, len(work) * len(names)
    for item in work:
        key = item.key["kind"], item.key["item"]
        missing = [policy for policy in policies if (*key, policy.name) not in done]
        if missing or (*key, FULL_CACHE.name) not in done:
            for row in _fresh(loaded, item, missing):
                if (*key, row["policy"]) not in done:
                    rows.add(row)
                finished += 1
                update(finished + len(policies) - len(missing), total)
            finished += len(policies) - len(missing)
        else:
            finished += len(names)
        update(finished, total)
    return [row for row in rows.done if row["policy"] in names]


def _fresh(loaded: Loaded, item: Item, policies: Sequence[Policy]) -> Iterator[dict[str, Any]]:
    for row in measure.compare(loaded.model, item.tokens, item.prompt, policies):
        yield {**item.key, **row.facts()}
