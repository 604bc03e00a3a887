"""Does a plan's rate hold in a long run of other people? Claude Code's conversations, for instance: long, with waits.

    python benchmarks/plan_long_run.py TRACE [hours] [key=value of the scenario …]

The long run is not the planner's steady traffic: conversations are drawn from the trace anew, begin at random, on an
empty replica, and only the second half is judged, by then with as many open conversations as the traffic has.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise

import numpy as np

from kvsim.plan import Objectives, Offer, plan
from kvsim.plan.people import others
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import simulate, trace_of
from kvsim.trace import Trace, transform
from kvsim.trace.arrivals import Arrivals
from kvsim.units import NS_PER_S

SLO = "ttft_p90=5s,tpot_p90=50ms"
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.25)


def long_run(trace: Trace, rate: float, hours: float, seed: int) -> Trace:
    """Other people of `trace` for so many hours, conversations beginning at random."""
    drawn = others(trace, round(rate * hours * 3600), np.random.default_rng(seed))
    begins = rate * (drawn.parent < 0).mean()
    return transform.set_arrivals(drawn, Arrivals("poisson", rate=begins), seed)


def main(file: str, hours: float, **given: str) -> None:
    scenario = Scenario.build({"trace": file, "model": "llama-3.1-70b", "device": "h100-sxm", "policy": "paged-prefix",
                               "tp": 4, "scale_lengths": 0.14, **given})
    trace, goals, begun = trace_of(scenario), Objectives.parse(SLO), time.process_time()
    found = plan(scenario, goals, devices=[scenario.device], policies=[str(scenario.policy)], tps=[scenario.tp],
                 trace=trace)
    best = found.answer
    if best is None or best.rate_per_replica is None:
        sys.exit(found.candidates[0].reason)
    low, high = best.interval["rate_per_replica"]
    print(f"{best.label}, {SLO}: holds {best.rate_per_replica:.3g} requests/s ({low:.3g} to {high:.3g}), judged by "
          f"{found.requests:,}; {best.reason}; {time.process_time() - begun:.0f} s CPU")
    setup = prepare(scenario)
    for factor in FACTORS:
        day = long_run(trace, factor * best.rate_per_replica, hours, seed=9)
        record, _ = simulate(day, setup, setup.cost)
        at = np.frombuffer(record.arrival_ns, np.int64) / NS_PER_S
        cuts = np.linspace(hours / 2, hours, 5) * 3600
        for begin, end in [(cuts[0], cuts[-1]), *pairwise(cuts)]:
            rows = np.flatnonzero((at >= begin) & (at < end))
            values = goals.measure(record, Offer(day, rows, 0, 0))
            said = ", ".join(f"{o.name} {values[o.name] or 0:.3g} s" for o in goals.latency)
            print(f"  × {factor:<4} hours {begin / 3600:.1f} to {end / 3600:.1f}: {len(rows) / (end - begin):.3g} "
                  f"requests/s arrive, {said}: {', '.join(goals.missed(values)) or 'held'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 12,
         **dict(text.split("=", 1) for text in sys.argv[3:]))
