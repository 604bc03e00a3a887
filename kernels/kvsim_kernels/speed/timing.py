"""How long one launch takes: CUDA graphs of launches over rotating buffers, replayed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

REPLAYS = 25
WARM_SECONDS = 0.05  # an idle chip's clock takes some milliseconds to rise
LEAST_NS = 500_000  # of a replay, so that the clock's half microsecond is small beside it


@dataclass(frozen=True)
class Timing:
    """Nanoseconds of one launch over the replays."""

    median_ns: float
    p20_ns: float
    p80_ns: float
    replays: int
    launches: int  # a replay


def timed(launches: Sequence[Callable[[], None]], replays: int = REPLAYS) -> Timing:
    """Time `launches`, one for each set of buffers, on torch's current CUDA device.

    They are captured in one graph, in turn, so that a set has left the L2 cache when its turn comes again (if the sets
    are large enough together), and so that no host time is measured. Each has run before, which loads its code.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            start, end = event(), event()
            start.record()
            for launch in launches:
                launch()
            end.record()
    side.synchronize()
    rounds = max(1, round(LEAST_NS / (start.elapsed_time(end) * 1e6)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for launch in launches:
                launch()
    warm = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < warm:
        graph.replay()
        torch.cuda.synchronize()
    marks = [(event(), event()) for _ in range(replays)]
    for start, end in marks:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    count = rounds * len(launches)
    return summary([start.elapsed_time(end) * 1e6 / count for start, end in marks], count)


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def summary(samples: Sequence[float], launches: int) -> Timing:
    """Of nanoseconds a launch, one sample a replay."""
    p20, median, p80 = (float(x) for x in np.percentile(samples, [20, 50, 80]))
    return Timing(median, p20, p80, len(samples), launches)
