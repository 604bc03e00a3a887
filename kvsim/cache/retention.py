"""Retention: how many of a sequence's tokens stay in the cache, and what choosing them costs.

A policy is a pure function of lengths. A decoding sequence of `context` tokens holds
min(context − dropped, cap): `dropped` is fixed when its prompt ends (SnapKV), `cap` bounds it from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

from kvsim.errors import InputError
from kvsim.registry import Registry

NO_CAP = 1 << 60


class Retention(Protocol):
    """Which lengths are kept. Frozen, comparable, made by `parse_retention`."""

    @property
    def cap(self) -> int:
        """Most tokens a decoding sequence holds."""
        ...

    @property
    def rolls(self) -> bool:
        """Whether tokens can be dropped while a prompt is still being computed (it needs no scores)."""
        ...

    def kept(self, prompt: int) -> int:
        """Tokens kept of a prompt (or of all that was recomputed) when its last chunk is done."""
        ...

    def scored(self, tokens: int, context: int, last: bool) -> int:
        """Cached tokens whose scores a prefill chunk updates (`last`: it ends the prompt)."""
        ...

    @property
    def scores_decodes(self) -> bool:
        """Whether every decode step updates the scores of all tokens it attends."""
        ...


RETENTIONS: Registry[Any] = Registry("retention")


@RETENTIONS("full")
@dataclass(frozen=True, slots=True)
class Full:
    """Every token stays."""

    cap: int = NO_CAP
    rolls = False
    scores_decodes = False

    def kept(self, prompt: int) -> int:
        return prompt

    def scored(self, tokens: int, context: int, last: bool) -> int:
        return 0


FULL = Full()


@RETENTIONS("window")
@dataclass(frozen=True, slots=True)
class Window:
    """The first `sinks` tokens and the latest `recent` ones (StreamingLLM, Xiao et al. 2023). Costs no scoring."""

    sinks: int = 4
    recent: int = 1020
    rolls = True
    scores_decodes = False

    @property
    def cap(self) -> int:
        return self.sinks + self.recent

    def kept(self, prompt: int) -> int:
        return min(prompt, self.cap)

    def scored(self, tokens: int, context: int, last: bool) -> int:
        return 0


@RETENTIONS("heavy_hitter")
@dataclass(frozen=True, slots=True)
class HeavyHitter:
    """`budget` tokens: the latest `recent` and those of the largest summed attention (H2O, Zhang et al. 2023).

    The sums need every attention weight with its final normaliser: a second, light pass over what a step attends.
    """

    budget: int = 1024
    recent: int = 512
    rolls = False
    scores_decodes = True

    @property
    def cap(self) -> int:
        return self.budget

    def kept(self, prompt: int) -> int:
        return min(prompt, self.budget)

    def scored(self, tokens: int, context: int, last: bool) -> int:
        return context + tokens


@RETENTIONS("snapkv")
@dataclass(frozen=True, slots=True)
class SnapKV:
    """The prompt is cut to `budget` tokens once, by the attention of its last `observe` ones; answers are kept whole
    (SnapKV, Li et al. 2024)."""

    budget: int = 1024
    observe: int = 32
    cap = NO_CAP
    rolls = False
    scores_decodes = False

    def kept(self, prompt: int) -> int:
        return min(prompt, self.budget)

    def scored(self, tokens: int, context: int, last: bool) -> int:
        return context + tokens if last else 0


def parse_retention(text: str) -> Retention:
    """`"window"`, `"window:sinks=4,recent=508"`, `"heavy_hitter:budget=1024"` → the policy."""
    name, _, rest = text.partition(":")
    kind = RETENTIONS.get(name)
    values: dict[str, int] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        known = [field.name for field in fields(kind) if field.name != "cap"]
        if key not in known or not value.isdecimal():
            want = ", ".join(f"{field}=N" for field in known) or "no parameters"
            raise InputError(f"retention {text!r}: {item!r} is not understood; {name} takes {want}")
        values[key] = int(value)
    retention: Retention = kind(**values)
    if retention.kept(NO_CAP) < 1 or getattr(retention, "recent", 0) > retention.cap:
        raise InputError(f"retention {text!r} keeps too little: its budget must be at least 1 and hold what is recent")
    return retention
