"""How many replicas should run: a target of requests in flight for each, within bounds."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InputError
from kvsim.units import NS_PER_S, parse_duration_ns


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Every `every_ns` the wanted number is requests in flight ÷ `target`, rounded up, within `least` … `most`. More
    are started at once and serve after `startup_ns`; there are fewer only when fewer were wanted for `hold_ns`, and a
    replica that goes finishes what it has."""

    least: int
    most: int
    target: int = 32
    startup_ns: int = 60 * NS_PER_S
    every_ns: int = 10 * NS_PER_S
    hold_ns: int = 60 * NS_PER_S

    @classmethod
    def parse(cls, text: str) -> Autoscale:
        """`"1-8"` or `"1-8,target=32,startup=60s,every=10s,hold=60s"`."""
        bounds, *options = (piece.strip() for piece in text.split(","))
        least, dash, most = bounds.partition("-")
        if not dash or not least.isdecimal() or not most.isdecimal() or not 1 <= int(least) <= int(most):
            raise InputError(f"--autoscale {text!r} is not understood: write LEAST-MOST, such as 1-8,target=32")
        values: dict[str, int] = {}
        for option in options:
            key, _, value = option.partition("=")
            if key == "target" and value.isdecimal() and int(value) > 0:
                values["target"] = int(value)
            elif key in ("startup", "every", "hold"):
                values[f"{key}_ns"] = parse_duration_ns(value)
            else:
                raise InputError(f"--autoscale: {option!r} is not understood; it takes target=N, startup, every, hold")
        if values.get("every_ns", 1) <= 0:
            raise InputError("--autoscale: every must be above zero")
        return cls(int(least), int(most), **values)

    def wanted(self, in_flight: int) -> int:
        return min(self.most, max(self.least, -(-in_flight // self.target)))
