"""Replicas that fail and return at given times."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InputError
from kvsim.units import parse_duration_ns


@dataclass(frozen=True, slots=True)
class Outage:
    """Replica number `replica` is away from `start_ns` until `end_ns` (None: for good)."""

    replica: int
    start_ns: int
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Failures:
    """All outages. What a replica had in flight is lost with it, and sent again (`retry`) or not."""

    outages: tuple[Outage, ...] = ()
    retry: bool = True

    @classmethod
    def parse(cls, text: str | None, retry: bool, replicas: int) -> Failures:
        """`"1@60s-2m,3@5m"`: replica 1 is away from 60 s to 2 min, replica 3 from 5 min on. Counted from 0."""
        outages = []
        for part in filter(None, (piece.strip() for piece in (text or "").split(","))):
            number, at, times = part.partition("@")
            start, dash, end = times.partition("-")
            if not at or not number.isdecimal() or not start:
                raise InputError(f"--failures {part!r} is not understood: write REPLICA@FROM-TO, such as 1@60s-2m")
            if int(number) >= replicas:
                raise InputError(f"--failures {part!r}: replicas are numbered 0 to {replicas - 1}")
            begin, until = parse_duration_ns(start), parse_duration_ns(end) if dash else None
            if until is not None and until <= begin:
                raise InputError(f"--failures {part!r}: it must return after it has failed")
            outages.append(Outage(int(number), begin, until))
        return cls(tuple(outages), retry)
