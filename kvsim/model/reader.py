"""Reads counts out of a config under any of the names that families use, and names what is wrong."""

from __future__ import annotations

from typing import Any

from kvsim.errors import InputError

_MOST = 10**9


class Reader:
    """A config and the name to call it by in messages."""

    def __init__(self, config: dict[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def count(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is there and not null, as a whole number (≥ 1; ≥ 0 where `default` is 0).

        Raises InputError that names the key if none is there (and there is no default) or it is no such number.
        """
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            least = 0 if default == 0 else 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
                raise InputError(f"{self.where}: {name} is {value!r}; it must be a whole number from {least} to 10⁹")
            return value
        if default is None:
            raise InputError(f"{self.where}: {names[0]} is missing, so this is not a config.json of a language model")
        return default
