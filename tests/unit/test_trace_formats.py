"""Each trace format: what a small file of it becomes, and that it is told from its content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from kvsim.trace import Trace, load
from kvsim.trace.files import open_source
from kvsim.trace.formats import FORMATS
from kvsim.units import NS_PER_MS, NS_PER_S

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
SMALL = {
    "azure_2023.csv": "azure",
    "azure_2024.csv": "azure",
    "burstgpt_1.csv": "burstgpt",
    "burstgpt_3.csv": "burstgpt",
    "claude": "claude-code",
    "kvsim.csv": "kvsim",
    "kvsim.jsonl": "kvsim",
    "lengths.csv": "lengths",
    "mooncake.jsonl": "mooncake",
    "ragpulse": "ragpulse",
    "servegen": "servegen",
    "vidur.csv": "vidur",
    "vllm/run": "vllm-bench",
    "vllm/workload.jsonl": "vllm-bench-workload",
}


def read(name: str, **options: object) -> Trace:
    return load(DATA / name, **options)  # type: ignore[arg-type]


def same(one: Trace, other: Trace) -> bool:
    columns = ("arrival_ns", "prompt_tokens", "output_tokens", "session", "parent", "after_parent_ns", "block_ids")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


@pytest.mark.parametrize(("name", "format"), SMALL.items())
def test_exactly_one_format_claims_a_content(name: str, format: str) -> None:
    source = open_source(str(DATA / name))
    assert [known for known, reader in FORMATS.items() if reader.sniff(source)] == [format]


def test_every_format_has_a_small_file() -> None:
    assert set(SMALL.values()) == set(FORMATS.names())


@pytest.mark.parametrize("name", SMALL)
def test_invariants_of_every_trace(name: str) -> None:
    trace = read(name, untimed="poisson:1")
    assert trace.format == SMALL[name]
    assert trace.arrival_ns[0] == 0 and (np.diff(trace.arrival_ns) >= 0).all()
    assert (trace.parent < np.arange(len(trace))).all()
    assert (trace.prompt_tokens > 0).all() and (trace.output_tokens >= 0).all()
    for row, request in enumerate(trace):
        ends = [0, *trace.ends(row).tolist()]
        assert ends == sorted(ends) and ends[-1] <= request.prompt_tokens + request.output_tokens
        assert len(request.block_ids) == len(ends) - 1


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("name", [name for name in SMALL if "." in name])
def test_compression_is_seen_in_the_content_not_the_name(name: str, pack: object, tmp_path: Path) -> None:
    packed = tmp_path / "no-suffix"
    packed.write_bytes(pack((DATA / name).read_bytes()))  # type: ignore[operator]
    assert same(load(packed, untimed="poisson:1"), read(name, untimed="poisson:1"))


@pytest.mark.parametrize("name", ["claude", "ragpulse", "servegen", "vllm"])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_is_read_like_its_folder(name: str, mode: str, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    with tarfile.open(packed, mode) as tar:  # type: ignore[call-overload]
        tar.add(DATA / name, name)
    assert same(load(packed, untimed="poisson:1"), read("vllm/run" if name == "vllm" else name, untimed="poisson:1"))


def test_members_compressed_inside_a_folder(tmp_path: Path) -> None:
    for file in (DATA / "ragpulse").iterdir():
        (tmp_path / file.name).write_bytes(gzip.compress(file.read_bytes()))
    assert same(load(tmp_path), read("ragpulse"))


def test_a_folder_with_one_trace_is_that_trace(tmp_path: Path) -> None:
    shutil.copy(DATA / "vidur.csv", tmp_path / "some-trace")
    (tmp_path / "README").write_text("what is here")
    assert same(load(tmp_path), read("vidur.csv"))


def test_a_member_of_an_archive(tmp_path: Path) -> None:
    packed = tmp_path / "two.tar"
    with tarfile.open(packed, "w") as tar:
        for name in ("vidur.csv", "azure_2023.csv"):
            data = (DATA / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    assert same(load(f"{packed}::vidur.csv"), read("vidur.csv"))


def test_azure_2023_reads_seven_digits_crlf_and_a_last_line_without_end() -> None:
    trace = read("azure_2023.csv")
    assert trace.arrival_ns.tolist() == [0, 4_314_579_000, 4_541_877_100]
    assert trace.prompt_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert not trace.has_ids


def test_azure_2024_reads_zones_and_absent_fractions() -> None:
    assert read("azure_2024.csv").arrival_ns.tolist() == [0, 1_998_837_000, 3_498_837_000]


@pytest.mark.parametrize("name", ["burstgpt_1.csv", "burstgpt_3.csv"])
def test_burstgpt_drops_and_counts_failures(name: str) -> None:
    trace = read(name)
    assert trace.dropped == {"failed": 1}
    assert trace.prompt_tokens.tolist()[:2] == [472, 1087]


def test_burstgpt_keeps_order_within_a_second_and_empty_answers() -> None:
    trace = read("burstgpt_1.csv")
    assert trace.arrival_ns.tolist() == [0, 40 * NS_PER_S, 40 * NS_PER_S]
    assert trace.output_tokens.tolist() == [18, 230, 0]
    assert read("burstgpt_3.csv").session.tolist() == [0, 0]


def test_vidur_seconds() -> None:
    assert read("vidur.csv").arrival_ns.tolist() == [0, 52 * NS_PER_MS]


def test_lengths_take_the_chosen_arrivals() -> None:
    assert read("lengths.csv", arrivals="constant:4").arrival_ns.tolist() == [0, NS_PER_S // 4, NS_PER_S // 2]
    one, two = (read("lengths.csv", arrivals="poisson:4", seed=seed) for seed in (1, 2))
    assert not np.array_equal(one.arrival_ns, two.arrival_ns)


def test_chosen_arrivals_replace_recorded_ones() -> None:
    trace = read("vidur.csv", arrivals="constant:1")
    assert trace.arrival_ns.tolist() == [0, NS_PER_S] and "replaced" in trace.notes[0]
    assert read("vidur.csv", untimed="constant:1").arrival_ns.tolist() == [0, 52 * NS_PER_MS]


def test_mooncake_gives_the_last_partial_block_an_id() -> None:
    trace = read("mooncake.jsonl")
    assert trace.block_size == 512 and trace.block_rule == "ceil"
    assert trace.ends(0).tolist() == [512, 1024, 1100]
    assert trace[0].block_ids == trace[3].block_ids
    assert trace[0].block_ids[:2] == trace[1].block_ids[:2] and trace[0].block_ids[2] != trace[1].block_ids[2]
    assert trace[2].block_ids[0] == trace[0].block_ids[0]


def test_mooncakes_format_with_other_blocks(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]}\n' * 2)
    trace = load(file, block_size=16)
    assert trace.block_size == 16 and trace.ends(0).tolist() == [40]  # never apart: one id


def test_claude_code_chains_calls_with_think_times() -> None:
    trace = read("claude", arrivals="constant:1")
    by_time = {int(at) // NS_PER_S: row for row, at in enumerate(trace.arrival_ns)}
    first, second, nested, nested_second, last = (by_time[second] for second in (0, 10, 15, 21, 40))
    parent, think = trace.parent.tolist(), (trace.after_parent_ns / NS_PER_S).tolist()
    assert [parent[row] for row in (first, second, nested, nested_second, last)] == [-1, first, second, nested, second]
    assert think[second] == 8 and think[nested] == 1 and think[nested_second] == 5 and think[last] == 26
    assert {trace.session[row] for row in (first, second, nested, last)} == {0}


def test_claude_code_subagents_may_have_an_absolute_clock() -> None:
    trace = read("claude", arrivals="constant:1")
    assert (trace.arrival_ns[trace.session == 1] / NS_PER_S).tolist() == [1, 101.5]


def test_claude_code_covers_an_answer_that_the_next_call_repeats() -> None:
    trace = read("claude", arrivals="constant:1")
    # 130 + 70 tokens: the third block of 64 ends in the answer; the call after it has it in its prompt.
    assert trace.ends(0).tolist() == [64, 128, 192]
    follow_up = int(np.flatnonzero(trace.parent == 0)[0])
    assert trace[follow_up].block_ids[:3] == trace[0].block_ids
    # The last call begins like them and then differs: compaction.
    assert trace[5].block_ids[0] == trace[0].block_ids[0] and trace[5].block_ids[1] not in trace[0].block_ids


def test_claude_code_ids_mean_nothing_across_files() -> None:
    trace = read("claude", arrivals="constant:1")
    ids = [{i for row in np.flatnonzero(trace.session == k) for i in trace[int(row)].block_ids} for k in (0, 1)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


def test_one_claude_code_conversation_needs_no_arrival_process() -> None:
    trace = load(DATA / "claude" / "trace_0001.json")
    assert trace.arrival_ns[0] == 0 and len(trace) == 5


def test_ragpulse_chains_components_of_unequal_length() -> None:
    trace = read("ragpulse")
    assert trace.arrival_ns.tolist() == [0, 11 * NS_PER_S, 13 * NS_PER_S]
    assert trace.session.tolist() == [0, 1, 0]
    # 20 + 30 + 40 + 5 tokens are alike in the first two rows; prompts have 292 tokens and components 262.
    assert trace[0].block_ids[:2] == trace[1].block_ids[:2] and trace[0].block_ids[2] != trace[1].block_ids[2]
    assert trace.ends(0).tolist() == [22, 105, 110] and trace.ends(1).tolist() == [22, 105, 112]
    # The third row asks the same question after another beginning: the same content, not the same prefix.
    assert trace[2].block_ids[0] == trace[0].block_ids[0] and trace[2].block_ids[-1] not in trace[0].block_ids


def test_measured_run_arrives_by_the_engines_clock_and_shares_real_prefixes() -> None:
    trace = read("vllm/run")
    assert trace.arrival_ns.tolist() == [0, 250 * NS_PER_MS]
    assert trace.prompt_tokens.tolist() == [36, 40]
    # 32 token ids are alike: two blocks of 16, no more; the answer of the longer one fills a third.
    assert trace[0].block_ids == trace[1].block_ids[:1]
    assert trace.ends(0).tolist() == [32] and trace.ends(1).tolist() == [32, 48]
    assert read("vllm/run", block_size=8).ends(0).tolist() == [32, 40]


def test_measured_run_without_its_workload_says_so(tmp_path: Path) -> None:
    shutil.copy(DATA / "vllm" / "run" / "requests.jsonl", tmp_path)
    trace = load(tmp_path)
    assert not trace.has_ids and "no workload" in trace.notes[0]


def test_servegen_makes_requests_at_the_windows_rates() -> None:
    trace = read("servegen")
    # 0.5/s, 0.25/s and 0.1/s for 600 s each: 510 expected.
    assert 400 < len(trace) < 620
    assert set(trace.prompt_tokens.tolist()) == {100, 200} and set(trace.output_tokens.tolist()) == {10}
    assert 0.65 < (trace.prompt_tokens == 200).mean() < 0.85
    assert trace.arrival_ns[-1] < 1800 * NS_PER_S
    assert any("1 clients left out" in note for note in trace.notes)
    assert same(trace, read("servegen")) and not same(trace, read("servegen", seed=1))


def test_servegen_makes_only_the_part_that_is_asked_for() -> None:
    part = load(f"{DATA / 'servegen'}?start=20min&duration=5min")
    assert 40 < len(part) < 120 and part.arrival_ns[-1] < 300 * NS_PER_S


@pytest.mark.parametrize("name", ["kvsim.csv", "kvsim.jsonl"])
def test_kvsims_own_format(name: str) -> None:
    trace = read(name)
    assert trace.arrival_ns.tolist() == [0, 250 * NS_PER_MS, 2750 * NS_PER_MS]
    assert trace.parent.tolist() == [-1, -1, 1] and trace.after_parent_ns.tolist() == [0, 0, 2500 * NS_PER_MS]
    assert trace.session[1] == trace.session[2] != trace.session[0]
    assert trace.ends(1)[-1] == 128 and trace[2].block_ids[:2] == trace[1].block_ids
    assert "arrivals were not in order: sorted" in trace.notes


def test_priorities_and_a_block_rule_are_read() -> None:
    trace = read("kvsim.csv")
    assert trace.priority.tolist() == [0, 1, 0]
    assert trace.block_rule == "floor" and trace.block_size == 64
    assert trace.ends(1).tolist() == [64, 128]


def test_options_may_stand_behind_the_name() -> None:
    trace = load(f"{DATA / 'lengths.csv'}?arrivals=constant:2&limit=2")
    assert trace.arrival_ns.tolist() == [0, NS_PER_S // 2]
    assert load(f"{DATA / 'azure_2023.csv'}?start=4s&duration=400ms").prompt_tokens.tolist() == [396]


def test_the_bundled_sample_is_an_hour_of_conversations() -> None:
    trace = load("sample")
    assert 3500 < trace.arrival_ns[-1] / NS_PER_S < 3600
    assert len(trace) > 5000 and (trace.parent >= 0).any() and trace.has_ids
