"""The real traces in ../shared: rows, rates, percentiles and reusable share as its README states them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import InputError
from kvsim.trace import Trace, load
from kvsim.trace.chain import runs
from kvsim.trace.stats import describe, reusable_share
from kvsim.units import NS_PER_S

pytestmark = pytest.mark.shared

Percentiles = tuple[float, float, float, float]
# file: format, rows, duration s, rate, peaks over 1 s and 10 s, prompt and output p50/p90/p99/max, reusable share
TABLE: dict[str, tuple[str, int, float, float, float, float, Percentiles, Percentiles, float | None]] = {
    "azure_2023_conv.csv.gz": (
        "azure", 19_366, 3501.7, 5.53, 16, 9.8, (1020, 2734, 4142, 14050), (129, 424, 601, 1000), None),
    "azure_2023_code.csv.gz": (
        "azure", 8_819, 3435.9, 2.57, 67, 32.7, (1469, 5188, 7436, 7437), (13, 55, 251, 1899), None),
    "vidur_splitwise_code.csv.gz": (
        "vidur", 8_819, 3435.9, 2.57, 67, 32.7, (1469, 5188, 7436, 7437), (13, 55, 251, 1899), None),
    "mooncake_conversation.jsonl.gz": (
        "mooncake", 12_031, 3537.0, 3.40, 28, 6.7, (6909, 27367, 85400, 126195), (350, 597, 1119, 2000), 0.374),
    "ragpulse_week1_days1-4.tar.xz": (
        "ragpulse", 2_538, 345_495, 0.0073, 3, 0.4, (3167, 3852, 4802, 6226), (196, 497, 794, 1843), 0.318),
    "measured_vllm_dev.tar.xz::RTXPRO6000_Llama-3.1-8B": (
        "vllm-bench", 300, 29.2, 10.3, 16, 11.2, (732, 1460, 2765, 3998), (632, 770, 784, 1021), 0.076),
    "measured_vllm_dev.tar.xz::RTXPRO6000_Qwen3-30B-A3B-Instruct-2507": (
        "vllm-bench", 300, 29.1, 10.3, 16, 11.2, (728, 1452, 2768, 4570), (638, 785, 1001, 1224), 0.079),
}  # fmt: skip


def near(found: dict[str, Any], stated: Percentiles) -> bool:
    """As printed: rounded to whole tokens."""
    return all(abs(value - said) <= 0.51 for value, said in zip(found.values(), stated, strict=True))


@pytest.mark.parametrize("name", TABLE)
def test_statistics(name: str, shared: Path) -> None:
    format, rows, duration, rate, peak, peak_10, prompt, output, share = TABLE[name]
    facts = describe(load(f"{shared / 'traces'}/{name}"))
    assert facts["format"] == format and facts["rows"] == rows and facts["dropped"] == {}
    assert facts["duration_s"] == pytest.approx(duration, abs=0.06)
    assert facts["rate_per_s"] == pytest.approx(rate, rel=0.01)
    assert facts["peak_rate_1s"] == peak and facts["peak_rate_10s"] == pytest.approx(peak_10, abs=0.051)
    assert near(facts["prompt"], prompt) and near(facts["output"], output)
    found = facts["reusable_share"]
    assert found == share if share is None else found == pytest.approx(share, abs=0.0005)


def test_burstgpt_without_its_failures(shared: Path) -> None:
    """The README's percentiles count the 17 rows of zeros; ours are those of the requests that are replayed."""
    trace = load(shared / "traces" / "burstgpt_1_first400.csv.gz")
    facts = describe(trace)
    assert facts["rows"] == 383 and facts["dropped"] == {"failed": 17}
    assert facts["duration_s"] == 37_269 and facts["peak_rate_1s"] == 2 and facts["peak_rate_10s"] == pytest.approx(0.3)
    zeros = np.zeros(17)
    prompt, output = (
        np.percentile([*column, *zeros], (50, 90, 99, 100)).round().tolist()
        for column in (trace.prompt_tokens, trace.output_tokens)
    )
    assert prompt == [314, 1418, 1958, 2126] and output == [230, 571, 1421, 2019]


def test_lengths_only(shared: Path) -> None:
    facts = describe(load(shared / "traces" / "lengths_sharegpt_val_10k_llama2.csv.gz", arrivals="at-once"))
    assert facts["rows"] == 10_000 and facts["duration_s"] is None
    assert near(facts["prompt"], (35, 761, 2862, 3973)) and near(facts["output"], (286, 681, 1000, 1734))


def test_vidurs_copy_of_the_code_trace_is_the_code_trace(shared: Path) -> None:
    one, other = (load(shared / "traces" / name) for name in ("azure_2023_code.csv.gz", "vidur_splitwise_code.csv.gz"))
    assert (one.prompt_tokens == other.prompt_tokens).all() and (one.output_tokens == other.output_tokens).all()
    assert np.abs(one.arrival_ns - other.arrival_ns).max() <= 1000  # vidur's has microseconds


def test_servegen(shared: Path) -> None:
    path = f"{shared}/traces/servegen_language_m-small_clients0-9.tar.xz"
    trace = load(f"{path}?start=10h&duration=10min")
    assert any("made from the distributions of 7 clients" in note for note in trace.notes)
    assert any("3 clients left out" in note for note in trace.notes)
    expected = 0.0
    with tarfile.open(path) as tar:
        names = tar.getnames()
        for client in (0, 2, 3, 4, 6, 7, 9):
            name = next(name for name in names if name.endswith(f"chunk-{client}-trace.csv"))
            file = tar.extractfile(name)
            assert file is not None
            expected += sum(float(line.split(b",")[1]) for line in file if line.startswith(b"36000,")) * 600
    assert len(trace) == pytest.approx(expected, rel=0.25)


def test_two_measured_runs_in_one_archive_are_named(shared: Path) -> None:
    with pytest.raises(InputError, match=r"holds 2 measured runs: name one, like .*::RTXPRO6000_Llama-3.1-8B"):
        load(shared / "traces" / "measured_vllm_dev.tar.xz")


def test_mooncake_over_small_cache_blocks_is_one_run_an_id(shared: Path) -> None:
    """Nine million cache blocks of 16 tokens, in a few runs a row; every full block of every prompt has a key."""
    trace = load(shared / "traces" / "mooncake_conversation.jsonl.gz")
    found = [runs(trace, row, 16) for row in range(len(trace))]
    covered = np.array([sum(count for _, _, count in row) for row in found])
    assert (covered == trace.prompt_tokens // 16).all()
    assert covered.sum() > 9_000_000 and sum(map(len, found)) < 40_000


@pytest.fixture(scope="module")
def claude_code(shared: Path) -> Trace:
    return load(shared / "traces" / "claude_code_conversations_0001-0140.tar.xz", arrivals="at-once")


@pytest.mark.slow
def test_claude_code_statistics(claude_code: Trace) -> None:
    facts = describe(claude_code)
    assert facts["format"] == "claude-code" and facts["rows"] == 6_961 and facts["block_size"] == 64
    assert near(facts["prompt"], (112050, 287756, 699160, 894371))
    assert near(facts["output"], (237, 848, 3062, 15390))
    assert facts["reusable_share"] == pytest.approx(0.953, abs=0.0005)
    assert reusable_share(claude_code, answers=True) == pytest.approx(0.9554, abs=0.0005)


@pytest.mark.slow
def test_claude_code_conversations(claude_code: Trace) -> None:
    assert len(set(claude_code.session.tolist())) == 136
    assert (claude_code.parent >= 0).sum() == 6_961 - 136
    ends = [claude_code.arrival_ns[claude_code.session == session].max() for session in range(136)]
    assert np.median(ends) / NS_PER_S == pytest.approx(2407, abs=0.5)
    assert (claude_code.output_tokens == 0).sum() == 8


@pytest.mark.slow
def test_claude_code_ids_are_few(claude_code: Trace) -> None:
    assert len(claude_code.block_ids) < 310_000  # of 15 million
