"""Time is integer nanoseconds, sizes are integer bytes; this file turns them from and into words."""

from __future__ import annotations

import math
import re

from kvsim.errors import InputError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_TIME = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S, "m": 60 * NS_PER_S,
         "min": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_SIZE = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": KIB, "mib": MIB, "gib": GIB,
         "tib": 1 << 40, "k": KIB, "m": MIB, "g": GIB}
_MOST = 1 << 62
"""146 years in nanoseconds, 4 EiB: more is a slip, and sums of it would not fit into 64 bits"""
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Zµ]*)\s*")


def _quantity(text: str, units: dict[str, int], default: str, what: str) -> int:
    match = _QUANTITY.fullmatch(text)
    unit = (match[2] or default) if match else ""
    scale = units.get(unit) or units.get(unit.lower())
    if match is None or scale is None:
        raise InputError(f"{what} {text!r} is not understood: write a number and one of {', '.join(units)}")
    value = float(match[1]) * scale
    if value > _MOST:
        raise InputError(f"{what} {text!r} is too large")
    return round(value)


def parse_duration_ns(text: str) -> int:
    """`"50ms"`, `"2s"`, `"8m"` → nanoseconds. A bare number is seconds."""
    return _quantity(text, _TIME, "s", "duration")


def parse_bytes(text: str) -> int:
    """`"24GiB"`, `"80 GB"`, `"512"` → bytes. A bare number is bytes."""
    return _quantity(text, _SIZE, "b", "size")


def seconds(ns: float) -> float:
    """Nanoseconds as seconds."""
    return ns / NS_PER_S


def format_duration(seconds_: float | None, digits: int = 3) -> str:
    """A duration in the unit a person would pick: `12.3 ms`, `1.25 s`, `2 min 5 s`; a dash for nothing."""
    if seconds_ is None or math.isnan(seconds_):
        return "–"
    size = abs(seconds_)
    if size >= 120:
        minutes, rest = divmod(round(seconds_), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= scale:
            return f"{_digits(seconds_ / scale, digits)} {unit}"
    return "0 s" if size == 0 else f"{_digits(seconds_ / 1e-9, digits)} ns"


def format_bytes(size: float, digits: int = 3) -> str:
    """A size in binary units: `15.2 GiB`, `800 KiB`."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size) >= scale:
            return f"{_digits(size / scale, digits)} {unit}"
    return f"{size:.0f} B"


def format_count(value: float, digits: int = 3) -> str:
    """A count with thousands separators, or with a few digits where it is small."""
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else _digits(value, digits)


def _digits(value: float, digits: int) -> str:
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"
