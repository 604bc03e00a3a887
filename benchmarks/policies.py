"""What cache policies cost the simulator: `python benchmarks/policies.py [--repeats N] [POLICY …]`; `make bench` too.

CPU time of the event loop per engine step (4,000 requests of the bundled chat hour), beside that of plain paged blocks
under the same traffic, at 0.7 and at 2 times its rate: with room to spare, and overloaded. Each policy runs in turns
with plain paged, so that both see the same machine; of each the best run counts, because whatever else runs there only
adds. Nothing asserts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from kvsim import native
from kvsim.cache.policies import POLICIES
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import simulate, trace_of

BASE = "paged"
RATES = (0.7, 2.0)
"""times the sample's own rate"""
GOAL = 2.0
"""times plain paged, at most"""


def main() -> None:
    known = [name for name in POLICIES.names() if name not in (BASE, "uncached")]  # without a cache nobody has strides
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", metavar="POLICY", default=known)
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, of which the best counts")
    options = parser.parse_args()
    if not native.up_to_date():
        print("The inner loop is not compiled (make native): ratios are those of plain Python.")
    print(f"CPU time a step, goal ≤ {GOAL:g} × {BASE}" + "".join([f"{f'{rate:g} × the rate':>26}" for rate in RATES]))
    for policy in options.policies:
        cells = [compare(policy, rate, options.repeats) for rate in RATES]
        print(f"{policy:<36}" + "".join([f"{ratio:>13.2f} × ({us:>5.2f} µs)" for ratio, us in cells]), flush=True)


def compare(policy: str, rate: float, repeats: int) -> tuple[float, float]:
    """(times plain paged, µs) of CPU that a step of `policy` takes."""
    base, other = timer(BASE, rate), timer(policy, rate)
    times = [(base(), other()) for _ in range(repeats)]
    best = min([us for us, _ in times]), min([us for _, us in times])
    return best[1] / best[0], best[1]


def timer(policy: str, rate: float) -> Callable[[], float]:
    """What runs a policy once and says how many µs of CPU a step took. A radix tree comes with SGLang's scheduler."""
    engine = "sglang" if POLICIES.get(policy).prefix == "radix" else "vllm-1"
    scenario = Scenario(
        trace="sample", model="llama-3.1-8b", device="l40s", policy=policy, engine=engine, max_model_len=16384,
        rate_scale=rate, limit=4000, interval=False,
    )
    setup, trace = prepare(scenario), trace_of(scenario)

    def us() -> float:
        begin = time.process_time_ns()
        recorder, _ = simulate(trace, setup, setup.cost)
        return (time.process_time_ns() - begin) / 1e3 / recorder.engine_steps

    return us


if __name__ == "__main__":
    main()
