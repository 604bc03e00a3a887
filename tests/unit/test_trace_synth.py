"""Synthetic traces: seeded, as asked, and like the statistics that their presets name."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.trace import Trace, load
from kvsim.trace.arrivals import Arrivals
from kvsim.trace.chain import runs
from kvsim.trace.lengths import Empirical, Fixed, Lognormal, parse_distribution
from kvsim.trace.presets import PRESETS
from kvsim.trace.synth import SynthSpec, generate
from kvsim.units import NS_PER_S


def gaps_s(process: Arrivals, n: int = 40_000) -> np.ndarray:
    return np.diff(process.times(n, np.random.default_rng(5))) / NS_PER_S


def digest(trace: Trace) -> str:
    columns = (trace.arrival_ns, trace.prompt_tokens, trace.output_tokens, trace.parent, trace.after_parent_ns)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()[:16]


def test_poisson_gaps_have_the_mean_and_spread_of_an_exponential() -> None:
    gaps = gaps_s(Arrivals("poisson", rate=4))
    assert math.isclose(gaps.mean(), 0.25, rel_tol=0.03)
    assert math.isclose(gaps.std() / gaps.mean(), 1, rel_tol=0.03)
    assert math.isclose((gaps > 0.25).mean(), math.exp(-1), rel_tol=0.03)


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gamma_gaps_have_the_cv_asked_for(cv: float) -> None:
    gaps = gaps_s(Arrivals("gamma", rate=4, cv=cv))
    assert math.isclose(gaps.mean(), 0.25, rel_tol=0.05)
    assert math.isclose(gaps.std() / gaps.mean(), cv, rel_tol=0.05)


def test_onoff_is_silent_between_bursts_and_keeps_the_mean_rate() -> None:
    gaps = gaps_s(Arrivals("onoff", rate=5, on_s=2, off_s=6), 80_000)
    assert math.isclose(gaps.mean(), 0.2, rel_tol=0.06)
    # 20/s in a burst: a gap of 2 s is a silence. There is about one per 8 s.
    assert math.isclose((gaps > 2).sum() / gaps.sum(), math.exp(-2 / 6) / 8, rel_tol=0.1)


def test_constant_and_at_once() -> None:
    rng = np.random.default_rng(0)
    assert Arrivals("constant", rate=4).times(3, rng).tolist() == [0, NS_PER_S // 4, NS_PER_S // 2]
    assert Arrivals("at-once").times(3, rng).tolist() == [0, 0, 0]


def test_distributions() -> None:
    rng = np.random.default_rng(1)
    drawn = Lognormal(100, 0.5).draw(50_000, rng)
    assert math.isclose(np.median(drawn), 100, rel_tol=0.02)
    assert math.isclose(np.log(drawn).std(), 0.5, rel_tol=0.02)
    drawn = Empirical((0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)).draw(50_000, rng)
    assert abs(np.percentile(drawn, 90) - 90) < 1 and drawn.max() <= 100
    assert Fixed(7).draw(3, rng).tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("text", "found"), [("512", Fixed(512)), ("lognormal:512:1.5", Lognormal(512, 1.5)), ("0", Fixed(0))]
)
def test_distributions_as_text(text: str, found: object) -> None:
    assert parse_distribution(text, "prompt") == found


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "lognormal:1", "lognormal:0:1", "normal:1:1", "1:2"])
def test_distributions_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="prompt is"):
        parse_distribution(text, "prompt")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_seeded_and_say_their_source(name: str) -> None:
    spec = replace(PRESETS[name], requests=200)
    one, same, other = generate(spec), generate(spec), generate(replace(spec, seed=1))
    assert len(one) == 200 and digest(one) == digest(same) != digest(other)
    assert spec.source in one.notes[0]


def test_a_seed_means_the_same_trace_everywhere() -> None:
    """Pinned: a change here changes everyone's synthetic results, and must be said in the changelog."""
    assert digest(load("synth:chat?requests=500&seed=7&arrivals=poisson:2")) == "1241ed37eca627b9"


@pytest.mark.parametrize("name", ["azure-chat", "azure-code", "mooncake-chat"])
def test_presets_reach_their_rate_and_lengths(name: str) -> None:
    spec = replace(PRESETS[name], requests=20_000)
    trace = generate(spec)
    rate = len(trace) / (trace.arrival_ns[-1] / NS_PER_S)
    assert math.isclose(rate, spec.arrivals.rate, rel_tol=0.1)
    first = trace.prompt_tokens[trace.parent < 0] - spec.system_tokens
    assert isinstance(spec.prompt, Empirical) and isinstance(spec.output, Empirical)
    assert math.isclose(np.median(first), spec.prompt.values[5], rel_tol=0.06)
    assert math.isclose(np.median(trace.output_tokens), spec.output.values[5], rel_tol=0.06)


def test_conversations_go_on_from_their_answers() -> None:
    spec = SynthSpec(
        requests=400,
        turns=3,
        prompt=Fixed(100),
        message=Fixed(20),
        output=Fixed(50),
        system_tokens=64,
        think_s=Fixed(5),
    )
    trace = generate(spec)
    later = np.flatnonzero(trace.parent >= 0)
    assert len(later) > 150
    assert (trace.after_parent_ns[later] == 5 * NS_PER_S).all()
    before = trace.parent[later]
    assert (trace.prompt_tokens[later] == trace.prompt_tokens[before] + 50 + 20).all()
    assert (trace.prompt_tokens[trace.parent < 0] == 164).all()
    for row, parent in zip(later.tolist(), before.tolist(), strict=True):
        # All that the parent said, prompt and answer, is the beginning of what follows.
        assert runs(trace, row, 1)[: len(runs(trace, parent, 1))] == runs(trace, parent, 1)
        assert trace.ends(parent)[-1] == trace.prompt_tokens[parent] + trace.output_tokens[parent]
    shared = {trace[row].block_ids[0] for row in range(len(trace))}
    others = [i for row in np.flatnonzero(trace.parent < 0) for i in trace[int(row)].block_ids[1:]]
    assert len(shared) == 1 and len(others) == len(set(others))


def test_system_prompts_are_shared_by_those_who_have_the_same() -> None:
    trace = generate(SynthSpec(requests=300, system_tokens=32, system_prompts=3))
    assert len({trace[row].block_ids for row in range(300)}) == 3
    assert trace.ends(0).tolist() == [32]


def test_nothing_shared_needs_no_ids() -> None:
    assert not generate(SynthSpec(requests=10)).has_ids


def test_turns_have_the_mean_asked_for_and_context_ends_conversations() -> None:
    spec = SynthSpec(duration_s=40_000, arrivals=Arrivals(rate=1), turns=2.5, think_s=Fixed(0), output=Fixed(0))
    trace = generate(spec)
    assert math.isclose(len(trace) / len(set(trace.session.tolist())), 2.5, rel_tol=0.05)
    assert math.isclose(len(trace) / 40_000, 1, rel_tol=0.05)
    short = generate(replace(spec, max_context=600))
    assert (short.prompt_tokens + short.output_tokens).max() <= 600


def test_a_first_message_longer_than_the_context_is_cut_to_it() -> None:
    trace = generate(SynthSpec(requests=5, prompt=Fixed(10_000), output=Fixed(10_000), max_context=1000))
    assert len(trace) == 5 and (trace.prompt_tokens + trace.output_tokens <= 1000).all()
    assert (trace.prompt_tokens >= 1).all()


def test_duration_is_what_is_expected_to_arrive_in_it() -> None:
    trace = load("synth:chat?duration=10min&rate=3")
    assert trace.arrival_ns[-1] < 600 * NS_PER_S and len(trace) > 600


def test_text_reaches_every_field() -> None:
    trace = load(
        "synth:sharegpt?requests=20&seed=4&arrivals=constant:2&rate=4&prompt=10&message=lognormal:20:0.1&output=0"
        "&system_tokens=3&system_prompts=2&turns=1.5&think_s=2&max_context=5000"
    )
    assert len(trace) == 20 and (trace.output_tokens == 0).all()
    assert set(trace.prompt_tokens[trace.parent < 0].tolist()) == {13}


def test_lengths_may_be_those_of_another_trace(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("prompt_tokens,output_tokens\n" + "".join(f"{k},{10 * k}\n" for k in range(1, 102)))
    trace = load(f"synth:azure-chat?requests=5000&prompt=trace:{file}&output=trace:{file}")
    assert trace.prompt_tokens.min() == 1 and trace.prompt_tokens.max() == 101
    assert math.isclose(np.median(trace.prompt_tokens), 51, rel_tol=0.05)
    assert math.isclose(np.percentile(trace.output_tokens, 90), 910, rel_tol=0.03)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("synth:azure-chatt", "did you mean azure-chat"),
        ("synth:chat?rat=1", "did you mean rate"),
        ("synth:chat?rate=nan", "rate"),
        ("synth:chat?rate=0", "rate"),
        ("synth:chat?rate=-1", "rate"),
        ("synth:chat?requests=0", "requests is 0"),
        ("synth:chat?requests=1e12", "requests is"),
        ("synth:chat?requests=2.5", "whole number"),
        ("synth:chat?turns=0.5", "turns is 0.5"),
        ("synth:chat?turns=many", "must be a number"),
        ("synth:chat?duration=0s", "duration is 0"),
        ("synth:chat?duration=1h&requests=5", "one of them is enough"),
        ("synth:chat?duration=1h&arrivals=at-once", "no duration"),
        ("synth:chat?system_tokens=40000", "fills max_context"),
        ("synth:chat?seed=-1", "seed is -1"),
    ],
)
def test_text_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(text)
