"""Ratios in a profile's file: whole percent take half the room of decimals, and room decides how fine tables are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from kvsim.device.provenance import Frozen

DIGITS = 12
"""decimals of a ratio that survive a file"""


class Tabulated(Frozen):
    """Base of what holds a `ratio`: a file may say `percent` instead. It does where that loses no digit."""

    @model_validator(mode="before")
    @classmethod
    def _from_percent(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "percent" not in data:
            return data
        if "ratio" in data:
            raise ValueError("a table has percent or ratio, not both")
        rest = {name: value for name, value in data.items() if name != "percent"}
        return {**rest, "ratio": _each(data["percent"], lambda percent: round(percent / 100, DIGITS))}

    @model_serializer(mode="wrap")
    def _to_percent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        percent = _each(data["ratio"], lambda ratio: round(100 * ratio, DIGITS - 2))
        if _each(percent, lambda one: round(one / 100, DIGITS)) != _each(data["ratio"], float):
            return data
        return {"percent" if name == "ratio" else name: percent if name == "ratio" else value
                for name, value in data.items()}


def _each(value: Any, change: Callable[[float], float]) -> Any:
    """The numbers of nested lists changed; what is no number stays, for the validation to complain about."""
    if isinstance(value, list | tuple):
        return [_each(inner, change) for inner in value]
    return change(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
