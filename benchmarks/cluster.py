"""How fast a cluster is simulated: 32 replicas behind prefix-affinity routing, with shared prefixes.

    python benchmarks/cluster.py [REQUESTS]
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import simulate
from kvsim.trace.types import Trace, make_trace


def traffic(n: int, rate: float) -> Trace:
    """Poisson arrivals of 512/128 tokens, half of each prompt one of 5,000 shared beginnings."""
    rng = np.random.default_rng(0)
    arrival = rng.exponential(1e9 / rate, n).cumsum().astype(np.int64)
    ids = rng.integers(0, 5000, n)
    return make_trace("bench", "bench", arrival, np.full(n, 512), np.full(n, 128), block_size=256, block_rule="floor",
                      block_ids=ids, block_start=np.arange(n + 1))


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    setup = prepare(Scenario(trace="bench", model="llama-2-7b", device="a100-80-sxm", policy="paged-prefix",
                             replicas=32, router="prefix-affinity", max_num_seqs=128))
    trace = traffic(n, 32 * 8.0)
    wall, cpu = time.perf_counter(), time.process_time()
    record, _ = simulate(trace, setup, setup.cost)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = int((record.request_columns()["status"] == 0).sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{n:,} requests, 32 replicas, prefix-affinity: {wall:.0f} s ({cpu:.0f} s CPU), {peak:.2f} GiB, "
          f"{done:,} done, {record.engine_steps:,} steps (goal for 1,000,000: ≤ 300 s, 4 GiB)")


if __name__ == "__main__":
    main()
