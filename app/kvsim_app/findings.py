"""The sentence above each chart, computed from the data: pure functions, tested without a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.cost import Band
from kvsim.report import data
from kvsim.result import Result
from kvsim.units import format_bytes, format_count, format_duration
from kvsim_app.load import Held, Point, sized

Runs = Mapping[str, Result]


def compare(runs: Runs) -> str:
    """Who is fastest to the first token, and by how much."""
    known = {name: result.summary["latency_s"]["ttft"]["p99"] for name, result in runs.items()}
    known = {name: value for name, value in known.items() if value is not None}
    if not known:
        return "No request was completed."
    if len(known) == 1:
        ((name, value),) = known.items()
        return f"With **{name}**, 99 % of requests see their first token within **{format_duration(value)}**."
    best, worst = min(known, key=lambda n: known[n]), max(known, key=lambda n: known[n])
    if known[worst] <= known[best] * 1.02:
        return f"All policies answer alike: 99 % of first tokens come within **{format_duration(known[best])}**."
    return (
        f"**{best}** has the first token out within **{format_duration(known[best])}** for 99 % of requests; "
        f"with **{worst}** it takes **{format_duration(known[worst])}**, {_times(known[worst] / known[best])} as long."
    )


def anatomy(runs: Runs) -> str:
    """How much of the pool holds tokens, and what takes the rest."""
    shares = {name: result.summary["memory"]["mean"] for name, result in runs.items()}
    wasted = {
        name: sum(mean[k] or 0.0 for k in ("reserved", "internal", "external"))
        for name, mean in shares.items()
        if any(mean.values())
    }
    if not wasted:
        return "None of these runs keeps a cache: there is no pool to divide."
    worst, best = max(wasted, key=lambda n: wasted[n]), min(wasted, key=lambda n: wasted[n])
    if len(wasted) == 1 or wasted[worst] - wasted[best] < 0.01:
        return f"Of the pool **{_percent(wasted[worst])}** is allocated or cut off without holding a token."
    return (
        f"**{worst}** keeps **{_percent(wasted[worst])}** of the pool allocated or cut off without a token in it; "
        f"**{best}** {_percent(wasted[best])}."
    )


def memory_map(name: str, result: Result) -> str:
    """How broken up the free space gets."""
    pieces = data.memory_map(result)
    frame = result.timeline
    broken = frame.filter(frame["external"] > 0)
    owners = len(set(pieces.owner.tolist()) - {-1})
    if broken.is_empty():
        return (
            f"Under **{name}** no free byte is ever out of reach: any free block serves any request "
            f"({owners:,} requests seen here)."
        )
    worst = broken.sort(broken["external"] / (broken["external"] + broken["free"]), descending=True)[0]
    return (
        f"Under **{name}**, up to **{format_bytes(worst['external'].item())}** of free memory lies in holes outside "
        f"the largest one: free, but of no use to a request that needs more than a hole."
    )


def timeline(name: str, result: Result) -> str:
    """Where a request's time goes."""
    latency = result.summary["latency_s"]
    queue, e2e, ttft = latency["queue"]["mean"], latency["e2e"]["mean"], latency["ttft"]["mean"]
    if not e2e or queue is None:
        return "No request was completed."
    prefill = max((ttft or queue) - queue, 0.0)
    again = result.summary["cache"]["preemptions"]
    more = f" {again:,} preemptions made requests start over." if again else ""
    return (
        f"Under **{name}** a mean request spends **{_percent(queue / e2e)}** of its {format_duration(e2e)} waiting, "
        f"{_percent(prefill / e2e)} in prefill and {_percent(max(0.0, 1 - (queue + prefill) / e2e))} in decode.{more}"
    )


def operations(name: str, result: Result) -> str:
    """The engine's load in a line."""
    summary = result.summary
    load = data.load_over_time(result)
    waiting = float(load.values["waiting"].max()) if load.values else 0.0
    running = float(load.values["running"].max()) if load.values else 0.0
    rate = summary["throughput"]["output_tokens_per_s"] or 0.0
    peak = summary["memory"]["peak_used_share"]
    return (
        f"Under **{name}** the engine gives out **{format_count(rate)} tokens/s**, with at most "
        f"{running:,.0f} requests running and {waiting:,.0f} waiting"
        + (f"; tokens fill at most {_percent(peak)} of the pool." if peak else ".")
    )


def answer(
    found: Sequence[Held], target: float, price: float | None, band: Band
) -> tuple[str, list[dict[str, Any]]]:
    """The plan for `target` requests/s: a sentence, and a row a policy, the fewest GPUs first."""
    rows = []
    for one in found:
        rate, plan = one.rate, sized(one, target, price)
        low, high = (rate / band.high, rate / band.low) if rate else (None, None)
        rows.append(
            {
                "policy": one.policy,
                "GPUs": plan.gpus,
                "rate held": rate,
                "low": low,
                "high": high,
                "headroom": plan.replicas * rate / target - 1 if plan.replicas and rate else None,
                "cost": plan.cost_per_million_output_tokens,
                "energy": plan.kwh_per_million_output_tokens,
                "limited by": plan.limit,
                "why": one.why,
            }
        )
    # Whom the traffic does not load comes first: it may need fewer than any.
    first = {one.policy: not one.too_short for one in found}
    rows.sort(key=lambda r: (first[r["policy"]], r["GPUs"] is None, r["GPUs"] or 0, -(r["rate held"] or 0)))
    if not rows or rows[0]["GPUs"] is None:
        return _no_rate(found), rows
    best = rows[0]
    gpu, serve = ("GPU", "serves") if best["GPUs"] == 1 else ("GPUs", "serve")
    return (
        f"**{best['GPUs']} {gpu}** with **{best['policy']}** {serve} {target:.3g} requests/s within the objectives: "
        f"one replica holds {best['rate held']:.3g}."
    ), rows


def load_curve(found: Sequence[Held]) -> str:
    """Who holds the highest rate."""
    rates = {one.policy: one.rate for one in found if one.rate}
    if not rates or any(one.too_short for one in found):
        return _no_rate(found)
    best, worst = max(rates, key=lambda name: rates[name]), min(rates, key=lambda name: rates[name])
    sentence = f"**{best}** holds the objectives up to **{rates[best]:.3g} requests/s**"
    none = [one.policy for one in found if not one.rate]
    if none:
        return f"{sentence}; {' and '.join(f'**{name}**' for name in none)} at no rate."
    if len(rates) == 1:
        return f"{sentence}."
    if rates[best] > rates[worst] * 1.05:
        return f"{sentence}, {_times(rates[best] / rates[worst])} as much as **{worst}**."
    return f"{sentence}; the others hold about as much."


def _no_rate(found: Sequence[Held]) -> str:
    """Why no policy is the best."""
    short = [one for one in found if one.too_short]
    if not short:
        return "No policy here meets the objectives at any rate."
    under = f"under {' and '.join(f'**{one.policy}**' for one in short)}, " if len(short) < len(found) else ""
    return f"No answer: {under}{short[0].why}."


def pareto(points: Sequence[Point]) -> str:
    """The trade at both ends, among rates that a replica keeps up with."""
    known = [p for p in points if p.steady and p.per_gpu and p.per_user]
    if not known:
        return "No rate that was tried can be kept up with."
    most, fast = max(known, key=lambda p: p.per_gpu or 0), max(known, key=lambda p: p.per_user or 0)
    return (
        f"A GPU gives at most **{most.per_gpu:,.0f} tokens/s**, with **{most.policy}**, at "
        f"{most.per_user:.3g} tokens/s for each user; a user gets at most **{fast.per_user:.3g}**, with "
        f"**{fast.policy}**, at {fast.per_gpu:,.0f} a GPU."
    )


def _percent(share: float) -> str:
    return "0 %" if share == 0 else "under 0.1 %" if share < 0.001 else f"{share * 100:.3g} %"


def _times(ratio: float) -> str:
    return f"{ratio:.2g} ×" if ratio < 10 else f"{ratio:,.0f} ×"
