"""Synthetic traces: seeded arrivals and lengths, shared system prompts, conversations that wait for their answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from kvsim.errors import InputError
from kvsim.registry import unknown
from kvsim.trace.arrivals import Arrivals, parse_arrivals
from kvsim.trace.build import MAX_TOKENS, Rows, finish
from kvsim.trace.chain import Blocks
from kvsim.trace.lengths import QUANTILES, Distribution, Empirical, Fixed, parse_distribution
from kvsim.trace.types import Int, Trace
from kvsim.units import NS_PER_MS, NS_PER_S, NS_PER_US, parse_duration_ns

PREFIX = "synth:"
_REQUESTS = 1000
_LONGEST_S = 30 * 86_400  # no think time is longer than a month
_EXPECTED_S_PER_TOKEN = 0.03
"""How long answers are expected to take, for the recorded arrivals of follow-ups: about the median of the Claude Code
calls (29 ms) and of measured vLLM runs (33 ms). A simulation replaces it by what really happens."""


@dataclass(frozen=True, slots=True)
class SynthSpec:
    """What synthetic traffic is like. Tokens, seconds, requests per second; frozen, and checked when made."""

    name: str = "custom"
    source: str = "chosen by the user"
    """where the numbers come from"""
    requests: int | None = None
    """how many; without it and without a duration 1,000"""
    duration_s: float | None = None
    """instead of `requests`: everything that is expected to arrive in this time"""
    seed: int = 0
    arrivals: Arrivals = Arrivals()  # noqa: RUF009  frozen
    """beginnings of conversations; its rate is that of requests, so conversations begin `turns` times more rarely"""
    prompt: Distribution = Fixed(512)  # noqa: RUF009
    """tokens of a conversation's first message"""
    message: Distribution = Fixed(64)  # noqa: RUF009
    """tokens that each further message adds to the conversation so far"""
    output: Distribution = Fixed(128)  # noqa: RUF009
    system_tokens: int = 0
    """tokens that every prompt begins with, before the first message"""
    system_prompts: int = 1
    """how many different ones there are; each conversation has one of them"""
    turns: float = 1.0
    """mean requests a conversation, geometrically distributed"""
    think_s: Distribution = Fixed(10)  # noqa: RUF009
    """from an answer's end to the next message"""
    max_context: int = 131_072
    """a conversation ends before prompt and answer exceed this"""

    def __post_init__(self) -> None:
        least_of = {"requests": 1, "system_prompts": 1, "max_context": 1, "system_tokens": 0, "seed": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= MAX_TOKENS:
                raise InputError(f"synthetic trace: {name} is {value}, it must be a whole number from {least} to 10⁹")
        if not (math.isfinite(self.turns) and self.turns >= 1):
            raise InputError(f"synthetic trace: turns is {self.turns}, it must be a mean of 1 or more")
        if self.duration_s is not None and not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise InputError(f"synthetic trace: duration is {self.duration_s} s, it must be above 0")
        if self.requests is not None and self.duration_s is not None:
            raise InputError("synthetic trace: requests and duration are both given, one of them is enough")
        if self.duration_s is not None and self.arrivals.kind == "at-once":
            raise InputError("synthetic trace: arrivals at once have no duration, say how many requests")
        if self.system_tokens >= self.max_context:
            raise InputError(f"synthetic trace: a system prompt of {self.system_tokens} tokens fills max_context")


def generate(spec: SynthSpec) -> Trace:
    """The trace of a spec: the same for the same spec. Rows that follow an answer have a parent and a think time; where
    prompts share a beginning or go on from each other they have block ids (rule `extent`), answers included."""
    rng = np.random.default_rng(spec.seed)
    begins = _beginnings(spec, rng)
    turns = _turns(spec.turns, len(begins), rng)
    n = int(turns.sum())
    first = np.cumsum(turns) - turns
    session = np.repeat(np.arange(len(begins), dtype=np.int64), turns)
    turn = np.arange(n, dtype=np.int64) - first[session]

    output = _tokens(spec.output, n, rng)
    added = np.where(turn == 0, _tokens(spec.prompt, n, rng), _tokens(spec.message, n, rng))
    added = np.maximum(added, 1)
    room = np.maximum(spec.max_context - spec.system_tokens, 1)
    output = np.where(turn == 0, np.minimum(output, room - 1), output)
    added = np.where(turn == 0, np.minimum(added, room - output), added)
    said = np.cumsum(added + output)  # over all conversations; what came before the conversation is taken off
    before = said[first] - (added + output)[first]
    end = spec.system_tokens + said - before[session]
    prompt = end - output

    think = np.zeros(n, np.int64)
    if spec.turns > 1:
        later = np.flatnonzero(turn > 0)
        think[later] = np.rint(np.minimum(spec.think_s.draw(len(later), rng), _LONGEST_S) * 1e3) * NS_PER_MS
    taken = think + np.where(turn > 0, np.roll(output, 1), 0) * int(_EXPECTED_S_PER_TOKEN * NS_PER_S)
    since = np.cumsum(taken)
    arrival = (begins[session] + since - since[first][session]) // NS_PER_US * NS_PER_US

    kind = (rng.random(len(begins)) * spec.system_prompts).astype(np.int64)
    rows = np.flatnonzero(end <= spec.max_context)  # a conversation only grows: what follows is cut too
    if spec.duration_s is not None:
        rows = rows[arrival[rows] < spec.duration_s * NS_PER_S]
    else:
        rows = np.sort(rows[np.lexsort((turn[rows], arrival[rows]))[: spec.requests or _REQUESTS]])
    position = np.full(n, -1, np.int64)
    position[rows] = np.arange(len(rows))
    made = Rows(
        arrival[rows],
        prompt[rows],
        output[rows],
        session=session[rows] if spec.turns > 1 else None,
        parent=np.where(turn[rows] > 0, position[rows - 1], -1),
        think_ns=think[rows],
        blocks=_blocks(spec, rows, turn, prompt, end, kind[session]),
        notes=[f"synthetic ({spec.name}, seed {spec.seed}): {spec.source}"],
    )
    return finish(made, spec.name, "synthetic", clock=False)


def _beginnings(spec: SynthSpec, rng: np.random.Generator) -> Int:
    """When conversations begin. As many as requests are asked for: no later one can be among the first so many."""
    process = spec.arrivals.at_rate(spec.arrivals.rate / spec.turns)
    if spec.duration_s is None:
        return process.times(spec.requests or _REQUESTS, rng)
    n = int(process.rate * spec.duration_s * 1.5) + 64
    while True:
        since: Int = process.times(n, rng)
        since -= since[0]
        if since[-1] >= spec.duration_s * NS_PER_S:
            return since[: int(np.searchsorted(since, spec.duration_s * NS_PER_S))]
        n *= 2


def _turns(mean: float, n: int, rng: np.random.Generator) -> Int:
    if mean == 1:
        return np.ones(n, np.int64)
    turns: Int = (1 + np.floor(np.log1p(-rng.random(n)) / math.log1p(-1 / mean))).astype(np.int64)
    return turns


def _tokens(distribution: Distribution, n: int, rng: np.random.Generator) -> Int:
    return np.rint(np.minimum(distribution.draw(n, rng), MAX_TOKENS)).astype(np.int64)


def _blocks(spec: SynthSpec, rows: Int, turn: Int, prompt: Int, end: Int, kind: Int) -> Blocks | None:
    """Ids of these rows: the system prompt's, then one for each message and each answer of the conversation so far."""
    shared = int(spec.system_tokens > 0)
    talks = 2 * (turn[rows] + 1) if spec.turns > 1 else np.zeros(len(rows), np.int64)
    counts = shared + talks
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if not start[-1]:
        return None
    row = np.repeat(rows, counts)
    place = np.arange(start[-1], dtype=np.int64) - np.repeat(start[:-1], counts) - shared  # −1: the system prompt
    told = row - turn[row] + place // 2  # row of the turn that this id belongs to
    ends = np.where(place % 2 == 0, prompt[told], end[told])
    ids = np.where(place < 0, kind[row], spec.system_prompts + 2 * told + place % 2)
    return Blocks(ids, start, np.where(place < 0, spec.system_tokens, ends), 0, "extent")


def from_text(name: str, said: dict[str, str]) -> Trace:
    """The trace of `synth:NAME?key=value&…`."""
    return generate(spec_from_text(name, said))


def spec_from_text(name: str, said: dict[str, str]) -> SynthSpec:
    """A preset with some fields replaced. Keys are the fields of SynthSpec, and `rate`, `duration` (`1h`).

    Lengths are a number, `lognormal:MEDIAN:SIGMA`, or `trace:FILE`: the quantiles of that trace's.
    """
    from kvsim.trace.presets import PRESETS

    if name not in PRESETS:
        raise unknown("synthetic preset", name, list(PRESETS))
    known = [f.name for f in fields(SynthSpec) if f.name not in ("name", "source", "duration_s")] + ["rate", "duration"]
    values: dict[str, object] = {}
    arrivals = PRESETS[name].arrivals
    for key, text in said.items():
        if key not in known:
            raise unknown("synthetic trace option", key, known)
        what = f"synthetic trace: {key}"
        if key == "arrivals":
            arrivals = parse_arrivals(text)
        elif key in ("prompt", "message", "output") and text.startswith("trace:"):
            values[key] = _measured(text.removeprefix("trace:"), answers=key == "output")
        elif key in ("prompt", "message", "output", "think_s"):
            values[key] = parse_distribution(text, what)
        elif key == "duration":
            values["duration_s"] = parse_duration_ns(text) / NS_PER_S
        elif key == "turns":
            values[key] = _number(text, what)
        elif key != "rate":
            values[key] = _whole(text, what)
    if "rate" in said:
        arrivals = arrivals.at_rate(_number(said["rate"], "synthetic trace: rate"))
    return replace(PRESETS[name], arrivals=arrivals, **values)  # type: ignore[arg-type]


def _measured(path: str, *, answers: bool) -> Empirical:
    """The lengths of a trace's prompts, or of its answers, as quantiles."""
    from kvsim.trace.loading import load

    trace = load(path, untimed="at-once")
    tokens = trace.output_tokens if answers else trace.prompt_tokens
    if not len(tokens):
        raise InputError(f"{path} has no requests whose lengths could be drawn")
    return Empirical(tuple(np.quantile(tokens, QUANTILES).tolist()))


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{what} is {text!r}, it must be a number") from None


def _whole(text: str, what: str) -> int:
    number = _number(text, what)
    if not number.is_integer():
        raise InputError(f"{what} is {text}, it must be a whole number")
    return int(number)
