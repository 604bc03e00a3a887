"""A made-up Result of any size, for tests of what reads one: a toy server of `slots` equal slots."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from kvsim.result import REQUESTS, STEPS, TIMELINE, Result

MIB = 1 << 20


def fake_result(n: int = 200, seed: int = 0, policy: str = "paged", tier: str = "datasheet", slots: int = 32) -> Result:
    """`n` Poisson requests, some refused; timeline samples at every start and end; consistent in itself."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.exponential(1e8, n).cumsum().astype(np.int64))
    prompt, output = rng.integers(16, 2000, n), rng.integers(1, 400, n)
    refused = rng.random(n) < 0.02
    free_at = [0] * slots
    scheduled, first, last = (np.full(n, -1) for _ in range(3))
    for i in np.flatnonzero(~refused):
        scheduled[i] = max(int(arrival[i]), heapq.heappop(free_at))
        first[i] = scheduled[i] + 20_000 * prompt[i] + 5_000_000
        last[i] = first[i] + 12_000_000 * (output[i] - 1)
        heapq.heappush(free_at, int(last[i]))
    ok = ~refused
    requests: dict[str, Any] = {
        **dict.fromkeys(REQUESTS, np.zeros(n, np.int64)),
        "id": np.arange(n), "session": np.full(n, -1), "arrival_ns": arrival, "prompt_tokens": prompt,
        "output_tokens": output, "status": refused.astype(int), "reason": refused.astype(int) - 1,
        "scheduled_ns": scheduled, "first_token_ns": first, "last_token_ns": last,
        "cached_tokens": np.where(ok, prompt // 4, 0),
    }  # fmt: skip
    gaps = np.full(int((output[ok] - 1).sum()), 12_000_000)
    pool = 4096 * MIB
    events = np.sort(np.concatenate([arrival[ok], scheduled[ok], last[ok]]))
    arrived, begun, ended = (np.searchsorted(np.sort(x[ok]), events, "right") for x in (arrival, scheduled, last))
    running, waiting = begun - ended, arrived - begun
    used, internal, cached = running * 100 * MIB, running * 5 * MIB, np.full(len(events), 50 * MIB)
    timeline: dict[str, Any] = {
        **dict.fromkeys(TIMELINE, np.zeros(len(events), np.int64)),
        "t_ns": events, "running": running, "waiting": waiting, "used": used, "internal": internal, "cached": cached,
        "free": pool - used - internal - cached, "largest_free": pool - used - internal - cached,
    }  # fmt: skip
    steps: dict[str, Any] = {
        **dict.fromkeys(STEPS, np.zeros(len(events) - 1, np.int64)),
        "start_ns": events[:-1], "end_ns": events[1:], "steps": np.ones(len(events) - 1), "decode": running[:-1],
        "attended": running[:-1] * 500,
    }  # fmt: skip
    run = {
        "scenario": {"trace": "fake", "model": "llama-3.1-8b", "device": "h100-sxm", "policy": policy, "seed": seed},
        "provenance": {"device": "h100-sxm", "tier": tier, "engine": "vllm", "model": "llama-3.1-8b", "seed": seed,
                       "version": "0.1.0"},
        "memory_plan": {"total_bytes": 80 << 30, "budget_bytes": 72 << 30, "weights_bytes": 15 << 30,
                        "activation_bytes": 2 << 30, "other_bytes": 1 << 30, "kv_bytes": pool,
                        "kv_bytes_per_token": 1 << 17, "kv_blocks": pool >> 21, "kv_tokens": pool >> 17,
                        "max_concurrency": 8.0},
        "counters": {"prefill": int(prompt[ok].sum()), "decode": int(output[ok].sum()), "evicted_blocks": 3,
                     "swapped_bytes": 0},
        "interval": {"ttft_p50": [0.02, 0.03], "ttft_p99": [0.05, 0.07], "tpot_p50": [0.011, 0.013],
                     "tpot_p99": [0.011, 0.013], "e2e_p50": [2.0, 2.8], "output_tokens_per_s": [1900.0, 2100.0]},
        "notes": ["the trace is made up"],
    }  # fmt: skip
    return Result.from_columns(run, requests, timeline, steps, (gaps, np.ones_like(gaps)), ["too_long"])
