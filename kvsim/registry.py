"""One registry for every plug point: policies, schedulers, routers, trace formats, engines.

A new plug-in is one file whose class or function carries the registry's decorator; the command line's choices,
the docs table, the contract tests and the app read the registry and so pick it up.
Other distributions add to a registry by an entry point of the group `kvsim.<kind>`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from typing import Generic, TypeVar

from kvsim.errors import InputError

T = TypeVar("T")


SHOWN = 3
"""names that are shown where one is wrong"""
CLOSE = 0.5
"""likeness (0 to 1) from which a name may have been meant …"""
AS_CLOSE = 2 / 3
"""… unless it is less than so much of the best one's"""
MANY = 16
"""names that are still listed in full in an error"""
LISTED = ("model", "device", "engine", "policy", "scheduler", "router", "trace format")
"""kinds that `kvsim list` lists"""


def unknown(kind: str, name: str, known: list[str]) -> InputError:
    """The error for a name that is not known, with the nearest ones that are, or all where they are few."""
    if close := nearest(name, known):
        hint = f"did you mean {either(close)}?"
    elif len(known) <= MANY:
        hint = f"known are {', '.join(sorted(known))}"
    else:
        hint = f"the nearest of {len(known)} are {', '.join(nearest(name, known, 0.0))}"
        if kind in LISTED:
            listed = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
            hint += f"; see `kvsim list {listed.replace(' ', '-')}`"
    return InputError(f"unknown {kind} {name!r}: {hint}")


def nearest(name: str, known: Iterable[str], least: float = CLOSE) -> list[str]:
    """The names that a person may have meant, best first: of the family that was named (llama, h) if there is one, then
    the most alike, the plainest, the newest, the smallest. Where none is as alike as `least` word by word, those that
    are letter by letter."""
    known = list(known)
    asked = _words(name.rsplit("/", 1)[-1])
    alike = {one: (_likeness(asked, words), words) for one in known if (words := _words(one))}
    family = {one: found for one, found in alike.items() if asked and found[1][0] == asked[0]}
    found = {one: found for one, found in (family or alike).items() if found[0] >= least}
    enough = AS_CLOSE * max((likeness for likeness, _ in found.values()), default=0.0) if least else 0.0

    def order(one: str) -> tuple[float, int, float, list[float]]:
        likeness, words = found[one]
        plain = [word for word in words if not word[0].isdigit()]
        version = next((float(word) for word in words if word[0].isdigit() and word[-1].isdigit()), 0.0)
        return -round(likeness, 3), len(plain), -version, [_number(word)[0] for word in words if word[0].isdigit()]

    best = [one for one in sorted(found, key=order) if found[one][0] >= enough][:SHOWN]
    return best or get_close_matches(name, known, SHOWN, least)


def either(names: list[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _words(name: str) -> list[str]:
    """`llama-3.1-8b` → llama, 3.1, 8b."""
    return re.findall(r"[a-z]+|\d+(?:\.\d+)?(?:[bmk](?![a-z0-9]))?", name.lower())


def _likeness(asked: list[str], words: list[str]) -> float:
    """How much each word that was asked for is like the nearest of these, from 0 to 1, in the mean."""
    return sum(max(_alike(one, other) for other in words) for one in asked) / max(1, len(asked))


def _alike(one: str, other: str) -> float:
    """Letters by letters, where a slip is seldom in the first; numbers by their ratio, twice as much is not near."""
    if one[0].isdigit() and other[0].isdigit():
        (a, unit), (b, as_unit) = _number(one), _number(other)
        near = float(a == b) if min(a, b) == 0 else max(0.0, 1 - abs(math.log2(a / b)))
        return near if unit == as_unit else 0.9 * near
    return SequenceMatcher(None, one, other).ratio() * (1 if one[0] == other[0] else 0.85)


def _number(word: str) -> tuple[float, str]:
    """`8b` → (8, b)."""
    digits = word.rstrip("bmk")
    return float(digits), word[len(digits):]


class Registry(Generic[T]):
    """Names → plug-ins of one kind, in order of registration."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}
        self._searched = False

    def __call__(self, name: str) -> Callable[[T], T]:
        """Decorator: register what follows under `name`."""

        def register(item: T) -> T:
            if name in self._items:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._items[name] = item
            return item

        return register

    def get(self, name: str) -> T:
        """The plug-in called `name`. Raises InputError with a "did you mean" otherwise."""
        if name not in self._items:
            self._search()
        if name not in self._items:
            raise unknown(self.kind, name, list(self._items))
        return self._items[name]

    def names(self) -> list[str]:
        self._search()
        return list(self._items)

    def items(self) -> Iterator[tuple[str, T]]:
        self._search()
        yield from self._items.items()

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def _search(self) -> None:
        """Entry points of other distributions, looked for once and only when asked (it costs milliseconds)."""
        if self._searched:
            return
        self._searched = True
        from importlib.metadata import entry_points  # costs 50 ms of imports

        for point in entry_points(group=f"kvsim.{self.kind.replace(' ', '_')}"):
            if point.name not in self._items:
                self._items[point.name] = point.load()
