"""A trace with the traffic that a published case describes: how many requests, how long, and when they come.

Cases give means, a kind of distribution and a kind of arrival; what they don't give is drawn, seeded by nothing but the
case's own numbers, so that a case is always the same trace.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np

from kvsim.errors import InputError
from kvsim.trace import Trace, load
from kvsim.trace.lengths import Distribution, Empirical, Fixed
from kvsim.trace.types import Int, make_trace
from kvsim.units import NS_PER_S

ROUNDS = 6
"""requests of each client of a closed loop where the case doesn't say: LMDeploy's own benchmark repeats six times"""
_SHAREGPT = (
    Empirical((4, 5, 8, 9, 15, 31, 98, 321, 549, 894, 1022)),
    Empirical((5, 10, 31, 54, 146, 290, 443, 656, 799, 960, 1023)),
)
"""prompts and answers of ShareGPT as vLLM's benchmark samples them (both under 1024 tokens; from
AKafakA/vidur_opt_scheduler, MIT). Of a shape only the spread counts: the means are the case's"""


@cache
def recorded() -> Trace:
    """The workload that LLMServingSim's recorded runs replay (casys-kaist/LLMServingSim, MIT): 300 arrivals with the
    lengths of ShareGPT conversations, as counted for Llama 3.1. Other tokenizers count some percent more or less."""
    with as_file(files("kvsim") / "data" / "samples" / "llmservingsim-sharegpt.csv.gz") as path:
        return load(str(path))


def trace_of_case(work: dict[str, Any], replicas: int = 1) -> Trace:
    """The requests that one of `replicas` equal copies gets. Raises InputError where a length or a count is missing."""
    if work.get("input_len") is None or work.get("output_len") is None:
        raise InputError("the case states no lengths")
    rng = np.random.default_rng(0)
    count = _count(work) // replicas or 1
    if work["arrival"] == "trace" and work["input_dist"] == work["output_dist"] == "sharegpt":
        return _replayed(work, count, replicas)
    prompts, answers = _lengths(work, count, rng)
    clients = work.get("concurrency")
    if work["arrival"] == "closed":
        if not clients:
            raise InputError("the case is a closed loop of an unknown number of clients")
        return closed_loop(prompts, answers, max(1, clients // replicas))
    arrival = np.zeros(count, np.int64)
    if work["arrival"] != "all_at_once":
        rate = _rate(work)
        gaps = rng.exponential(replicas / rate, count)
        if work["arrival"] == "trace":
            gaps *= count * replicas / rate / gaps.sum()  # a recorded run, whose mean rate is known
        arrival = np.cumsum(gaps * NS_PER_S).astype(np.int64)
        arrival -= arrival[0]
    return make_trace("case", "synthetic", arrival, prompts, answers)


def closed_loop(prompts: Int, answers: Int, clients: int) -> Trace:
    """Each of `clients` sends its next request when its last has been answered; request i belongs to i % clients."""
    row = np.arange(len(prompts), dtype=np.int64)
    parent = np.where(row >= clients, row - clients, -1)
    return make_trace("case", "synthetic", np.zeros(len(row), np.int64), prompts, answers, parent=parent)


def _count(work: dict[str, Any]) -> int:
    count = work.get("num_requests") or (work.get("concurrency") or 0) * ROUNDS
    if not count:
        raise InputError("the case does not say how many requests there were")
    return int(count)


def _rate(work: dict[str, Any]) -> float:
    if not work.get("request_rate"):
        raise InputError("the case states no request rate")
    return float(work["request_rate"])


def _lengths(work: dict[str, Any], count: int, rng: np.random.Generator) -> tuple[Int, Int]:
    jitter = (work.get("other") or {}).get("length_jitter_share")
    found = []
    for length, kind, shape in zip(("input_len", "output_len"), ("input_dist", "output_dist"), _SHAREGPT, strict=True):
        mean = work[length]
        if jitter and work[kind] == "other-named":
            values = mean * (1 + jitter * (2 * rng.random(count) - 1))
        elif work[kind] == "sharegpt":
            values = _scaled(shape, mean, count, rng)
        else:
            values = Fixed(mean).draw(count, rng)
        found.append(np.maximum(1, np.rint(values)).astype(np.int64))
    return found[0], found[1]


def _replayed(work: dict[str, Any], count: int, replicas: int) -> Trace:
    """Every `replicas`-th request of `recorded`, from its first again where there are more, at the case's means."""
    trace = recorded()
    turn, row = np.divmod(np.arange(count) * replicas, len(trace))
    arrival = trace.arrival_ns[row] + turn * round(trace.arrival_ns[-1] * len(trace) / (len(trace) - 1))
    arrival = arrival * (count * replicas / _rate(work) * NS_PER_S / max(1, arrival[-1]))
    lengths = [np.maximum(1, np.rint(each[row] * (work[name] / each[row].mean()))).astype(np.int64)
               for each, name in ((trace.prompt_tokens, "input_len"), (trace.output_tokens, "output_len"))]  # fmt: skip
    return make_trace("case", "synthetic", arrival.astype(np.int64), *lengths)


def _scaled(shape: Distribution, mean: float, count: int, rng: np.random.Generator) -> Any:
    values = shape.draw(count, rng)
    return values * (mean / values.mean())
