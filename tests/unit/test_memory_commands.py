"""`kvsim memory`, `kvsim list` and `kvsim validate memory` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim import cli

MEMORY_KEYS = {
    "total_bytes", "budget_bytes", "weights_bytes", "activation_bytes", "other_bytes", "kv_bytes", "kv_bytes_per_token",
    "kv_blocks", "kv_tokens", "max_concurrency",
}  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert cli.main([*args, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_memory_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "memory", "--model", "llama-3.1-8b", "--device", "h100-sxm", "--block-size", "32")
    assert set(found) >= MEMORY_KEYS
    parts = ("weights_bytes", "activation_bytes", "other_bytes", "kv_bytes", "unmanaged_bytes")
    assert sum(found[part] for part in parts) == found["total_bytes"]
    assert found["kv_bytes_per_token"] == 128 * 1024
    assert found["kv_tokens"] == found["kv_blocks"] * 32
    assert found["budget_bytes"] <= 0.9 * found["total_bytes"]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v2-lite"])
def test_memory_page_fits_80_columns(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", "--model", model, "--device", "h100-sxm"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "KV pool" in text and "requests at once" in text
    assert "…" not in text


def test_memory_reads_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
              "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000,
              "max_position_embeddings": 4096, "tie_word_embeddings": True}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    found = answer(capsys, "memory", "--model", str(path), "--device", "l4", "--kv-dtype", "int8")
    assert found["kv_bytes_per_token"] == 16 * 8 * 2 * (64 + 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "llama-3.1-70b", "--device", "h100-sxm"), "doesn't fit on h100-sxm"),
        (("--model", "lama-3.1-8b", "--device", "h100-sxm"), "did you mean llama-3.1-8b"),
        (("--model", "llama-3.1-8b", "--device", "h100"), "unknown device 'h100'"),
        (("--model", "llama-3.1-8b", "--device", "h100-sxm", "--engine", "vlm-1"), "did you mean vllm-1"),
        (("--model", "llama-3.1-8b", "--device", "h100-sxm", "--tp", "3"), "can't be split evenly"),
        (("--model", "llama-3.1-8b", "--device", "h100-sxm", "--kv-dtype", "int3"), "unknown number format 'int3'"),
        (("--model", "llama-3.1-8b", "--device", "h100-sxm", "--attention", "flsh"), "use flash or naive"),
        (("--model", "llama-3.1-8b", "--device", "h100-sxm", "--gpu-memory-utilization", "1.5"), "gpu-memory-util"),
    ],
)
def test_bad_input_is_one_sentence(
    args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["memory", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("kind", ["models", "devices", "engines", "policies", "schedulers", "trace-formats"])
def test_lists(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    entries = answer(capsys, "list", kind)
    names = [entry["name"] for entry in entries]
    assert len(names) == len(set(names)) > 0
    assert all(entry["provenance"] for entry in entries)
    assert cli.main(["list", kind]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in names)


def test_list_of_models_has_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    models = {entry["name"]: entry for entry in answer(capsys, "list", "models")}
    assert models["llama-3-70b"]["kv_bytes_per_token"] == 320 * 1024
    assert models["mixtral-8x7b"]["parameters"] == models["mixtral-8x7b"]["published_parameters"] == 46_702_792_704
    assert models["gpt-oss-20b"]["attention_groups"] == [{"window": 0, "layers": 12}, {"window": 128, "layers": 12}]


def test_list_of_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "modls"]) == 2
    assert "did you mean models" in capsys.readouterr().err
