"""What does each cache policy do to my traffic? The library, without the command line.

    python examples/policies.py
"""

import kvsim

base = kvsim.Scenario(
    trace="sample", model="llama-3.1-8b", device="l40s", limit=300, rate_scale=2, max_model_len=16384, interval=False
)

print(f"{'policy':<14}{'TTFT p99':>10}{'TPOT p50':>10}{'tokens/s':>10}{'KV used':>9}{'hits':>7}")
for policy in ("contiguous", "paged", "paged-prefix", "paged-int8"):
    summary = kvsim.run(base.replace(policy=policy)).summary
    latency, memory = summary["latency_s"], summary["memory"]
    print(
        f"{policy:<14}"
        f"{latency['ttft']['p99']:>8.2f} s"
        f"{latency['tpot']['p50'] * 1e3:>7.1f} ms"
        f"{summary['throughput']['output_tokens_per_s']:>10.0f}"
        f"{memory['mean']['used']:>9.1%}"
        f"{summary['cache']['prefix_hit_share']:>7.1%}"
    )
