"""ServeGen (alibaba/ServeGen, Apache-2.0): not requests but what each client's requests are like; a seeded generator.

A client is two files: `…-trace.csv` (no header; per 600 s: start, requests/s, CV of gaps, `Gamma` or `Weibull` or
nothing, shape, scale) and `…-dataset.json` (per 21,600 s: distributions of input and output tokens, each a Python dict
printed into a string). Without a chosen part the first day is made: all of it may be hundreds of millions of requests.
"""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError
from kvsim.trace.arrivals import exponential
from kvsim.trace.build import MAX_TOKENS, Rows, finish
from kvsim.trace.files import Member, Source
from kvsim.trace.formats.base import FORMATS, ReadOptions, TraceFormat
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_S

_WINDOW_S, _LENGTHS_S, _DAY_S = 600, 21_600, 86_400
_MOST_PER_S = 1e5
_SHAPES = {"": (-math.inf, math.inf), "Gamma": (0.005, 1e4), "Weibull": (0.1, 1e4)}  # beyond these gaps have no mean
_RATES = re.compile(r"\d+,[\d.eE+-]+,[\d.eE+-]+,(Gamma|Weibull)?,[\d.eE+-]+,[\d.eE+-]+")
_LENGTHS = re.compile(r'\{\s*"\d+":\s*\{\s*"input_tokens":\s*"\{')


@FORMATS("servegen")
class ServeGen(TraceFormat):
    about = "ServeGen client distributions (a folder or tar of *-trace.csv and *-dataset.json); requests are generated"

    @staticmethod
    def sniff(source: Source) -> bool:
        return not source.single and any(_RATES.fullmatch(member.first_line()) for member in source.members)

    @staticmethod
    def read(source: Source, options: ReadOptions) -> Trace:
        begin_s = (options.start_ns or 0) / NS_PER_S
        end_s = begin_s + _DAY_S if options.end_ns is None else options.end_ns / NS_PER_S
        lengths = {_client(m): m for m in source.members if _LENGTHS.match(m.head())}
        rates = {_client(m): m for m in source.members if _RATES.fullmatch(m.first_line())}
        known = [client for client in rates if client in lengths]
        if not known:
            raise InputError(f"{source.path}: no client has both its -trace.csv and its -dataset.json")
        part = f"{begin_s:g} s to {end_s:g} s"
        notes = [f"made from the distributions of {len(known)} clients, seed {options.seed}, {part}"]
        if len(known) < len(rates):
            notes.append(f"{len(rates) - len(known)} clients left out: they have rates and no lengths")
        made = []
        for number, client in enumerate(known):
            rng = np.random.default_rng([options.seed, number])
            made.append(_generate(rates[client], lengths[client], begin_s, end_s, rng))
        at, prompt, output = (np.concatenate(column) for column in zip(*made, strict=True))
        order = np.argsort(at, kind="stable")
        rows = Rows(np.rint(at * NS_PER_S).astype(np.int64)[order], prompt[order], output[order], notes=notes)
        return finish(rows, source.name, "servegen", clock=False)


def _client(member: Member) -> str:
    """What the two files of a client have in common: everything before the last dash."""
    return member.name.rpartition("-")[0]


def _generate(
    rates: Member, lengths: Member, begin_s: float, end_s: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], Int, Int]:
    """Arrival seconds, prompt and output tokens of one client's requests from begin to end."""
    dataset = _dataset(lengths)
    at: list[NDArray[np.float64]] = [np.zeros(0)]
    prompt: list[Int] = [np.zeros(0, np.int64)]
    output: list[Int] = [np.zeros(0, np.int64)]
    for line, text in rates.lines():
        start, rate, kind, shape = _window(rates, line, text)
        if rate <= 0 or start + _WINDOW_S <= begin_s or start >= end_s:
            continue
        times = start + _arrivals(rate, kind, shape, rng)
        times = times[(times >= begin_s) & (times < end_s)]
        here = dataset.nearest(start)
        at.append(times)
        prompt.append(here[0].draw(len(times), rng))
        output.append(here[1].draw(len(times), rng))
    return np.concatenate(at), np.concatenate(prompt), np.concatenate(output)


def _window(member: Member, line: int, text: str) -> tuple[float, float, str, float]:
    try:
        start, rate, cv, kind, shape, scale = text.split(",")
        numbers = float(start), float(rate), float(cv), float(shape), float(scale)
        low, high = _SHAPES[kind]
        if not np.isfinite(numbers).all() or numbers[1] > _MOST_PER_S or not low <= numbers[3] <= high:
            raise ValueError
    except (ValueError, KeyError):
        right = "start, rate, CV, Gamma or Weibull or nothing, shape, scale, all of them plausible"
        raise InputError(f"{member.label} line {line} is {text!r}, it must be: {right}") from None
    return numbers[0], numbers[1], kind, numbers[3]


def _arrivals(rate: float, kind: str, shape: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Arrivals in one window, in seconds from its start: gaps of the fitted shape, at the window's own mean rate."""
    n = int(rate * _WINDOW_S * 1.5 + 32)
    while True:
        if kind == "Gamma":
            gaps = rng.standard_gamma(shape, n) / shape
        elif kind == "Weibull":
            gaps = exponential(rng, n) ** (1 / shape) / math.gamma(1 + 1 / shape)
        else:
            gaps = exponential(rng, n)
        gaps[0] *= rng.random()  # the window opens somewhere within a gap
        times = np.cumsum(gaps / rate)
        if times[-1] >= _WINDOW_S:
            return times[times < _WINDOW_S]
        n *= 2


@dataclass(frozen=True)
class _Histogram:
    values: Int
    below: NDArray[np.float64]

    def draw(self, n: int, rng: np.random.Generator) -> Int:
        where = np.searchsorted(self.below, rng.random(n) * self.below[-1], side="right")
        drawn: Int = self.values[np.minimum(where, len(self.values) - 1)]
        return drawn


@dataclass(frozen=True)
class _Dataset:
    label: str
    windows: dict[int, tuple[_Histogram, _Histogram]]

    def nearest(self, second: float) -> tuple[_Histogram, _Histogram]:
        """The lengths of the 6 h window that holds this second, or of the nearest that has any."""
        window = int(second // _LENGTHS_S) * _LENGTHS_S
        return self.windows[min(self.windows, key=lambda start: abs(start - window))]


def _dataset(member: Member) -> _Dataset:
    try:
        found = json.loads(member.text())
        windows = {
            int(start): (_histogram(both["input_tokens"]), _histogram(both["output_tokens"]))
            for start, both in found.items()
            if both["input_tokens"] != "{}" != both["output_tokens"]
        }
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{member.label} is not a ServeGen dataset ({error}): window start → input_tokens and output_tokens, "
            'each like "{18: 0.25, 40: 0.75}"'
        ) from None
    if not windows:
        raise InputError(f"{member.label} has no window with lengths")
    return _Dataset(member.label, windows)


def _histogram(text: str) -> _Histogram:
    shares = {int(value): float(share) for value, share in ast.literal_eval(text).items()}
    values = np.array(list(shares), np.int64)
    weights = np.array(list(shares.values()))
    if values.min() < 0 or values.max() > MAX_TOKENS or not np.isfinite(weights).all() or weights.min() < 0:
        raise ValueError("tokens must be 0 … 10⁹ and shares 0 or more")
    return _Histogram(values, np.cumsum(weights))
