"""How long one launch takes on the host's clock: warm up, then repeat over rotating buffers until the median holds."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Launch = Callable[[], object]
LEAST, MOST = 3, 50
"""samples of a visit"""
SECONDS = 0.04
"""after which a visit takes no more samples than LEAST"""
SAMPLE_NS = 300_000
"""a sample is as many launches as take this long: the clock and the loop around it are then below a percent"""
STEADY = 0.03
"""(p80 − p20) ÷ median of the samples at which more are not needed"""


@dataclass(frozen=True, slots=True)
class Timing:
    """ns of one launch over the samples of a visit."""

    median: float
    p20: float
    p80: float
    samples: int


def timed(launches: Sequence[Launch], wait: Callable[[], None] = lambda: None, wash: Launch | None = None) -> Timing:
    """Time launches in turn, one buffer set each; `wait` returns once the device has done all of them.

    `wash` runs, untimed, before every launch, which then is a sample of its own: it leaves the core's caches, code
    and predictors as the other kernels of a step would. On an accelerator the time includes launching (no graph): the
    `cuda` backend's timer does not."""
    began = time.perf_counter_ns()
    launches[0]()
    wait()
    first = time.perf_counter_ns() - began
    if first < SECONDS * 1e9:  # a launch of seconds is warm after one
        began = time.perf_counter_ns()
        launches[-1]()
        wait()
        first = time.perf_counter_ns() - began
    inner = 1 if wash else max(1, min(1000, int(SAMPLE_NS / max(first, 1))))
    collected = gc.isenabled()
    gc.disable()
    try:
        samples = _samples(launches, wait, inner, wash)
    finally:
        if collected:
            gc.enable()
    p20, median, p80 = (float(x) for x in np.percentile(samples, [20, 50, 80]))
    return Timing(median, p20, p80, len(samples))


def _samples(launches: Sequence[Launch], wait: Callable[[], None], inner: int, wash: Launch | None) -> list[float]:
    samples: list[float] = []
    end, turn = time.perf_counter() + SECONDS, 0
    while len(samples) < MOST:
        chosen = [launches[(turn + i) % len(launches)] for i in range(inner)]
        turn += inner
        if wash:
            wash()
        began = time.perf_counter_ns()
        for launch in chosen:
            launch()
        wait()
        samples.append((time.perf_counter_ns() - began) / inner)
        late = time.perf_counter() > end
        if late and (len(samples) >= LEAST or time.perf_counter() > end + 4 * SECONDS):
            break
        if len(samples) >= 10 and steady(samples):
            break
    return samples


def undisturbed(samples: Sequence[float], shared: bool) -> float:
    """What a launch or step takes by one visit: the median of its samples; on a `shared` machine (a CPU), where what
    else runs adds time and nothing takes any away, the 20th percentile."""
    return float(np.percentile(samples, 20 if shared else 50))


def of_visits(times: Sequence[float], shared: bool) -> float:
    """What it takes by several visits that lie apart: the median; on a `shared` machine the least."""
    return float(min(times) if shared else np.median(times))


def steady(samples: Sequence[float]) -> bool:
    """Whether most samples agree."""
    p20, median, p80 = np.percentile(samples, [20, 50, 80])
    return bool(p80 - p20 <= STEADY * median)
