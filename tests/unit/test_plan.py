"""The planner: what it demands, finds, says and refuses."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvsim.cli import main
from kvsim.errors import InputError
from kvsim.metrics import latency
from kvsim.plan import Objectives, Offer, evaluate, plan, rate_at
from kvsim.plan.answer import TOO_SHORT, Candidate, choose, replicas_for
from kvsim.plan.objectives import Gaps
from kvsim.plan.search import Load, Point, Run, largest
from kvsim.scenario import Scenario
from kvsim.setup import prepare
from kvsim.simulate import run, simulate
from kvsim.trace import load, transform
from kvsim.trace.types import Trace, make_trace
from kvsim.workers import Failure, InProcess, Local, Work, attempt

BASE = Scenario(trace="made", model="llama-3.2-1b", device="l4", max_model_len=4096, interval=False)


def traffic(seed: int, n: int = 200) -> Trace:
    rng = np.random.default_rng(seed)
    arrival = rng.exponential(1e8, n).cumsum().astype(np.int64)
    return make_trace("made", "test", arrival, rng.integers(16, 1500, n), rng.integers(1, 60, n))


def find(trace: Trace, slo: str, **more: object) -> object:
    return plan(BASE, Objectives.parse(slo), devices=["l4"], policies=["paged"], tps=[1], requests=len(trace),
                trace=trace, **more)  # type: ignore[arg-type]


def test_objectives_say_what_they_demand() -> None:
    text = "ttft_p99=2s, tpot_p99.9=50ms, itl_max=1s, e2e_mean=9s, ttft=3s, goodput=95%, refused=0.02"
    goals = Objectives.parse(text)
    assert [o.name for o in goals.latency] == ["ttft_p99", "tpot_p99.9", "itl_max", "e2e_mean"]
    assert [o.quantile for o in goals.latency] == [0.99, pytest.approx(0.999), 1.0, None]
    assert (goals.each, goals.goodput, goals.refused) == ({"ttft": 3.0}, 0.95, 0.02)
    assert goals.requests == 20_000
    assert Objectives.parse("ttft_p50=1s").requests == 1000


@pytest.mark.parametrize(("text", "says"), [
    ("ttft_p99", "metric=limit"), ("tft_p99=1s", "did you mean"), ("ttft_p0=1s", "percentile"),
    ("ttft_p99=0s", "above zero"),
    ("refused=1%", "no latency"), ("itl=1s", "itl_p99"), ("ttft_p99=2parsec", "ttft_p99"),
    ("ttft_p99=1s,goodput=99%", "limits that a request"), ("ttft=1s,goodput=200%", "share"),
])
def test_bad_objectives_are_explained(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Objectives.parse(text)


def test_numbers_are_those_of_the_metrics() -> None:
    trace = traffic(1)
    setup = prepare(BASE)
    record, _ = simulate(trace, setup, setup.cost)
    names = [f"{m}_{s}" for m in ("ttft", "tpot", "itl", "e2e", "queue") for s in ("mean", "p50", "p99", "max")]
    found = Objectives.parse(",".join(f"{name}=1s" for name in names)).measure(record, Offer.all_of(trace))
    truth = latency(run(BASE, trace=trace))
    for name in names:
        metric, statistic = name.split("_")
        assert found[name] == pytest.approx(truth[metric][statistic], rel=1e-9), name


CASES = [
    ("ttft_p90=300ms", "paged"), ("tpot_p90=12ms,ttft_p99=2s", "paged-fp8"), ("e2e_p90=20s", "contiguous"),
    ("ttft=500ms,tpot=20ms,goodput=95%", "paged"), ("itl_p99=30ms", "paged"), ("queue_mean=50ms", "paged-prefix"),
]


@pytest.mark.parametrize("kind", ["single", "chat"])
@pytest.mark.parametrize(("slo", "policy"), CASES)
def test_the_answer_holds_and_the_next_step_does_not(slo: str, policy: str, kind: str) -> None:
    """Simulated to the end at the answer, one step of the grid below it and one above: several traces, policies and
    objectives."""
    seed = CASES.index((slo, policy))
    trace = traffic(seed) if kind == "single" else load(f"synth:chat?requests=200&rate=2&max_context=4000&seed={seed}")
    goals = Objectives.parse(slo)
    answer = plan(BASE, goals, devices=["l4"], policies=[policy], tps=[1], requests=len(trace), trace=trace).answer
    held = next(p for p in answer.curve if p.rate == answer.rate_per_replica)
    setup = prepare(BASE.replace(policy=policy))
    offers = Load.of(trace, setup)
    for index, holds in ((held.index - 1, True), (held.index, True), (held.index + 1, False)):
        offer = offers.at(index)
        gaps = Gaps(offer) if "itl" in slo else None
        record, _ = simulate(offer.trace, setup, setup.cost, stop=lambda r, now, g=gaps: g and g.look(r, now))
        assert (not goals.missed(goals.measure(record, offer, gaps))) is holds, index  # not stopped early: same verdict
        assert evaluate(offer, setup, setup.cost, goals, index).point.held is holds


def test_the_interval_holds_what_other_people_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace is as short as what is judged, so every search sees all of its people, and the interval has to come from
    drawing others; the cost model's part of it is taken away here. Against it stand the answers for other samples of
    the same traffic: 90 % of them it should hold (eight samples of each, apart from this test: 86, 91 and 89 %), and of
    these few, which depend on each other, three quarters."""
    monkeypatch.setattr("kvsim.plan.ends", lambda cost, memory, shape: ((cost, memory), (cost, memory)))
    inside = []
    for url, policy in (("synth:chat?requests=400&rate=2&max_context=4000", "paged"),
                        ("synth:chat?requests=300&rate=2&max_context=4000", "paged-prefix"),
                        ("synth:azure-chat?requests=800", "paged")):
        found = []
        for seed in range(4):
            one = plan(BASE.replace(interval=True, max_model_len=16384), Objectives.parse("ttft_p90=500ms"),
                       devices=["l4"], policies=[policy], tps=[1], trace=load(f"{url}&seed={seed}")).answer
            low, high = one.interval["rate_per_replica"]
            assert low < one.rate_per_replica < high < 2 * low
            found.append((low, one.rate_per_replica, high))
        inside += [low <= other <= high for i, (low, _, high) in enumerate(found)
                   for j, (_, other, _) in enumerate(found) if i != j]
    assert np.mean(inside) >= 0.75


@pytest.mark.parametrize("seed", [7, 8, 9])
def test_monotone_in_slo_and_in_rate(seed: int) -> None:
    rng = random.Random(seed)
    trace = traffic(seed) if seed < 9 else load("synth:chat?requests=200&rate=2&max_context=4000&seed=9")
    limits = sorted(rng.uniform(60, 2000) for _ in range(5))
    rates = [find(trace, f"ttft_p90={limit}ms").answer for limit in (40, *limits, 4000)]
    found = [0.0 if a is None else a.rate_per_replica for a in rates]
    assert found == sorted(found) and found[0] < found[-1]
    factors = [1, *sorted(rng.uniform(1, 40) for _ in range(3)), 40]
    counts = [find(transform.scale_rate(trace, f), "ttft_p90=500ms").answer.replicas for f in factors]
    assert counts == sorted(counts) and counts[0] < counts[-1]


@pytest.mark.parametrize("seed", range(20))
def test_search_is_monotone_even_where_the_run_is_not(seed: int) -> None:
    """A stricter limit fails wherever a laxer one does, whatever the noise: then its rate is never the larger."""
    rng = random.Random(seed)
    noise = {i: i + rng.gauss(0, 15) for i in range(-400, 400)}

    def rate(limit: float) -> object:
        def at(index: int) -> Run:
            missed = ("ttft_p99",) if noise[index] > limit else ()
            return Run(Point(index, rate_at(index), {}, missed, None, None), None, None)  # type: ignore[arg-type]
        return at

    start = rng.randint(-20, 20)
    found = [largest(rate(limit), start, 8) for limit in range(-40, 41, 5)]  # type: ignore[arg-type]
    known = [-9999 if index is None else index for index in found]
    assert known == sorted(known)


def test_workers_change_nothing() -> None:
    trace = traffic(3)
    one, two = find(trace, "ttft_p90=300ms"), find(trace, "ttft_p90=300ms", executor=Local(2))
    assert one.to_json() == two.to_json()


def test_out_of_reach_is_an_answer_with_its_reason() -> None:
    answer = find(traffic(2, 60), "tpot_p50=10us")
    assert answer.answer is None and not answer.to_json()["reachable"]
    said = answer.candidates[0].reason
    assert "with hardly any load tpot_p50 is" in said and "the limit 10.0 µs" in said
    assert "ms, the limit" in find(traffic(2, 60), "ttft_p50=10us").candidates[0].reason  # of a run that ends early too


def test_too_many_refusals_are_out_of_reach_at_any_rate() -> None:
    trace = traffic(2, 60)
    long = trace.with_columns(prompt_tokens=np.where(np.arange(60) % 3 == 0, 9000, trace.prompt_tokens))
    answer = find(long, "ttft_p90=9s")
    assert answer.candidates[0].reason.startswith("33.3% of requests are refused at any rate, the limit is 1.0%: ")
    assert answer.candidates[0].reason.endswith(" 33.3% are longer than 4,096 tokens (max_model_len)")
    assert find(long, "ttft_p90=9s,refused=40%").answer is not None


def test_a_model_that_fits_nowhere_is_said_per_candidate() -> None:
    answer = plan(BASE.replace(model="llama-3.1-70b"), Objectives.parse("ttft_p90=1s"), devices=["l4"],
                  policies=["paged"], tps=[1], trace=traffic(1))
    assert answer.answer is None and "fit" in answer.candidates[0].reason


def test_costs_pay_for_whole_replicas() -> None:
    one = Candidate("x", 2, "paged", rate_per_replica=4.0, price_per_gpu_hour=3.0, power_watts=500.0).sized(10.0, 100.0)
    assert (one.replicas, one.gpus) == (3, 6)
    assert one.cost_per_million_output_tokens == pytest.approx(6 * 3.0 / (10 * 100 * 3600 / 1e6))
    assert one.kwh_per_million_output_tokens == pytest.approx(6 * 0.5 / 3.6)
    assert replicas_for(8.0, 4.0) == 2 and replicas_for(8.0001, 4.0) == 3
    cheap = Candidate("y", 8, "paged", rate_per_replica=4.0, price_per_gpu_hour=0.1).sized(10.0, 100.0)
    assert choose([one, cheap]) == (1, "cost")
    unpriced = Candidate("z", 1, "paged", rate_per_replica=1.0).sized(10.0, 100.0)
    assert choose([one, cheap, unpriced])[1] == "GPUs" and choose([one, cheap, unpriced])[0] == 0


def test_the_interval_holds_the_answer_and_the_front_is_a_front() -> None:
    answer = plan(BASE.replace(interval=True), Objectives.parse("ttft_p90=300ms"), devices=["l4"], tps=[1],
                  policies=["paged", "paged-fp8"], requests=100, trace=traffic(5), prices={"l4": 0.7})
    best = answer.answer
    low, high = best.interval["rate_per_replica"]
    assert low <= best.rate_per_replica <= high and low < high
    assert best.interval["cost_per_million_output_tokens"][0] <= best.cost_per_million_output_tokens
    front = answer.pareto()
    assert front and all(a.user_tokens_per_s > b.user_tokens_per_s and a.gpu_tokens_per_s < b.gpu_tokens_per_s
                         for a, b in pairwise(front))


def test_command(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    flags = ["plan", "--trace", "synth:chat?requests=80&rate=5", "--model", "llama-3.2-1b", "--devices", "l4,a10",
             "--tp", "1", "--no-interval", "--jobs", "2", "--policies", "paged"]
    page = tmp_path / "plan.html"
    assert main([*flags, "--slo", "ttft_p50=1s", "--json", "--html", str(page), "--price", "l4=0.7,a10=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reachable"] and len(found["candidates"]) == 2 and found["best_by"] == "cost"
    assert {"device", "tp", "policy", "replicas", "rate_per_replica", "cost_per_million_output_tokens", "limit",
            "interval"} <= set(found["answer"])
    text = page.read_text()
    assert text.count("<svg") >= 2 and "The best costs least." in text and '<td class="best"></td>' not in text
    assert main([*flags, "--slo", "tpot_p50=1us"]) == 1
    out = capsys.readouterr().out
    assert "Not reachable" in out and max(map(len, out.splitlines())) <= 80
    assert main([*flags, "--price", "h100=2"]) == 2
    assert main([*flags, "--tp", "0"]) == 2


def test_a_trace_too_short_to_load_a_replica_is_said() -> None:
    found = find(traffic(2, 20), "e2e_mean=100s", prices={"l4": 1.0})
    (one,) = found.candidates
    assert found.answer is None and found.too_short == one and not found.to_json()["reachable"]
    assert one.curve == () and found.pareto() == [] and found.to_json()["pareto"] == []
    assert one.limit == TOO_SHORT and one.rate_per_replica is one.replicas is one.cost_per_million_output_tokens is None
    assert one.reason == ("20 requests are too few to load a replica: they meet the objectives however fast they come; "
                          "give a longer trace")
    part = plan(BASE, Objectives.parse("e2e_p50=100s"), devices=["l4"], policies=["paged"], tps=[1], requests=10,
                trace=traffic(2, 20)).candidates[0]
    assert part.reason.startswith("10 requests") and part.reason.endswith("; ask for more (--requests)")


def test_nothing_is_the_best_where_one_could_not_be_loaded() -> None:
    small = Candidate("l4", 1, "paged", rate_per_replica=4.0).sized(10.0, 100.0)
    large = Candidate("h100-sxm", 1, "paged", limit=TOO_SHORT, requests=20).without_rate("give a longer trace")
    assert choose([small]) == (0, "GPUs") and choose([small, large])[0] is None


def test_what_few_requests_cannot_load_is_asked_again_with_all() -> None:
    class Light(InProcess):
        """Finds no rate too fast in the first searches."""

        def run(self, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
            for number, task in enumerate(tasks):
                every = shared.traces[task.trace] is shared.traces[0]
                top = Candidate("l4", 1, "paged", rate_per_replica=9e9, limit=TOO_SHORT)
                yield number, attempt(work, shared, task) if every else top

    trace = traffic(6, 2100)
    answer = find(trace, "ttft_p90=300ms", executor=Light()).answer
    assert answer is not None and answer.requests == 2100 and answer.limit != TOO_SHORT
    assert answer.rate_per_replica == pytest.approx(find(trace, "ttft_p90=300ms").answer.rate_per_replica, rel=0.1)


def test_a_command_with_a_trace_too_short_says_one_sentence(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    flags = ["plan", "--trace", "synth:chat?requests=10&rate=5", "--model", "llama-3.2-1b", "--devices", "l4", "--jobs",
             "1", "--tp", "1", "--policies", "paged", "--slo", "e2e_p50=100s"]
    page = tmp_path / "plan.html"
    assert main([*flags, "--html", str(page)]) == 1
    out = capsys.readouterr().out
    assert "No answer: the requests are too few to load 1 × l4 paged." in out and "longer trace" in out
    row = next(line for line in out.splitlines() if line.startswith("1 × l4"))
    assert row.split() == ["1", "×", "l4", "paged", "–", "–", "–", "trace", "too", "short"]
    header, _, rest = page.read_text().partition("</header>")
    assert "longer trace" in header and "<svg" not in rest and "not found" not in page.read_text() + out
    assert main([*flags, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["answer"] is None and found["candidates"][0]["rate_per_replica"] is None
    assert "longer trace" in found["candidates"][0]["reason"]


def test_of_many_requests_only_the_close_candidates_are_judged_by_all() -> None:
    trace = traffic(4, 3000)
    answer = plan(BASE.replace(interval=True), Objectives.parse("ttft_p90=300ms"), devices=["l4", "h100-sxm"], tps=[1],
                  policies=["paged", "paged-fp8"], requests=3000, trace=trace)
    judged = {c.label: c.requests for c in answer.candidates}
    assert answer.requests == 3000 and answer.answer.device == "h100-sxm" and answer.answer.requests == 3000
    assert judged["1 × l4 paged"] == 1000 and any("1,000 requests only" in note for note in answer.notes)
    low, high = answer.answer.interval["rate_per_replica"]
    assert low <= answer.answer.rate_per_replica <= high and low < high
    places = [point.index for point in answer.answer.curve]
    assert places == sorted(set(places)) and max(places) - min(places) >= 8  # with the rates that the first search saw
    alone = plan(BASE, Objectives.parse("ttft_p90=300ms"), devices=["h100-sxm"], tps=[1], requests=3000,
                 policies=[answer.answer.policy], trace=trace).answer
    assert alone.rate_per_replica == answer.answer.rate_per_replica  # who else was asked about changes nothing


def test_a_candidate_whose_worker_is_lost_is_out_and_says_why() -> None:
    class LostLater(InProcess):
        """Answers the first searches, and loses those with all requests."""

        def run(self, work: Work, shared: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
            for number, task in enumerate(tasks):
                first = task.begin is None
                yield number, attempt(work, shared, task) if first else Failure("its worker died", died=True)

    answer = find(traffic(6, 2100), "ttft_p90=300ms", executor=LostLater())
    assert answer.answer is None and answer.candidates[0].reason == "its worker died"
