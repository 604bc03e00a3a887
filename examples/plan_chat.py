"""How many GPUs, of which kind, for an hour of chat? And does an 8-bit cache save any?

    python examples/plan_chat.py [TRACE]          # by default the bundled hour; Azure's, for instance, runs as well
"""

import sys

from kvsim import Scenario
from kvsim.plan import Objectives, plan

trace = sys.argv[1] if len(sys.argv) > 1 else "sample"
answer = plan(
    Scenario(trace=trace, model="llama-3.1-8b", device="l4", rate_scale=4, max_model_len=16384, interval=False),
    Objectives.parse("ttft_p90=2s,tpot_p90=100ms"),
    devices=["l4", "l40s"],
    policies=["paged", "paged-int8"],
    tps=[1],
    requests=200,
)
for candidate in answer.candidates:
    print(f"{candidate.label:<22}{candidate.rate_per_replica or 0:>6.2f} requests/s a replica "
          f"{candidate.gpus or '-':>4} GPUs   limit: {candidate.limit or candidate.reason}")
print(f"best: {answer.answer.label}" if answer.answer else "out of reach")
