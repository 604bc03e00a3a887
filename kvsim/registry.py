"""One registry for every plug point: policies, schedulers, routers, trace formats, engines.

A new plug-in is one file whose class or function carries the registry's decorator; the command line's choices,
the docs table, the contract tests and the app read the registry and so pick it up.
Other distributions add to a registry by an entry point of the group `kvsim.<kind>`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from kvsim.errors import InputError

T = TypeVar("T")


MANY = 12
"""names that are still listed in full in an error"""
LISTED = ("model", "device", "engine", "policy", "scheduler", "router", "trace format")
"""kinds that `kvsim list` lists"""


def unknown(kind: str, name: str, known: list[str]) -> InputError:
    """The error for a name that is not known, with the nearest ones that are, or all where they are few."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif len(known) <= MANY:
        hint = f"known are {', '.join(sorted(known))}"
    else:
        hint = f"the nearest of {len(known)} are {', '.join(difflib.get_close_matches(name, known, n=3, cutoff=0.0))}"
        if kind in LISTED:
            listed = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
            hint += f"; see `kvsim list {listed.replace(' ', '-')}`"
    return InputError(f"unknown {kind} {name!r}: {hint}")


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
