"""What Ray costs a sweep: the same runs on two workers of this machine, and on a Ray cluster of two CPUs that is up.

    python benchmarks/on_ray.py [RUNS [REQUESTS]]       # REQUESTS: as many as make a run of about a second

Wall times want a quiet machine; a task that does nothing tells on any machine what Ray adds to one that does something.
"""

from __future__ import annotations

import operator
import sys
import time
from typing import Any

from kvsim.scenario import Scenario
from kvsim.sweep.on_ray import Ray
from kvsim.sweep.running import _summary
from kvsim.workers import Executor, Failure, Local, Work

EMPTY = 400


def timed(executor: Executor, work: Work, shared: Any, tasks: list[Any]) -> float:
    """Wall seconds a task, from the first answer to the last: starting up is not counted, for it is not a run's."""
    first = 0.0
    for number, (_, answer) in enumerate(executor.run(work, shared, tasks)):
        if isinstance(answer, Failure):
            raise SystemExit(answer.message)
        first = first if number else time.perf_counter()
    return (time.perf_counter() - first) / (len(tasks) - 1)


def main() -> None:
    from ray.cluster_utils import Cluster  # type: ignore[import-not-found,unused-ignore]

    runs, requests = (int(text) for text in [*sys.argv[1:], *("32", "8000")[len(sys.argv) - 1 :]])
    tasks = [Scenario(trace=f"synth:chat?requests={requests}&rate=6&seed={seed}", model="llama-3.1-8b", device="l40s",
                      max_model_len=8192, interval=False) for seed in range(runs)]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        for name, executor in (("local", Local(2)), ("ray", Ray(cluster.address))):
            each = timed(executor, _summary, None, tasks)
            empty = timed(executor, operator.add, 0, list(range(EMPTY)))
            print(f"{name:<6} {each:.3f} s a run on two; a task that does nothing: {empty * 1e3:.2f} ms", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
