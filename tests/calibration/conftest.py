"""A model small enough to be measured whole, and the cases of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvsim_calibration.backends.cases import Case
from kvsim_calibration.backends.grid import Size, cases

from kvsim.model import load_model

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128,
    "max_position_embeddings": 256, "tie_word_embeddings": True, "torch_dtype": "float32"}


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture(scope="session")
def grid(config: Path) -> list[Case]:
    size = Size(batch=2, context=128, chunk=32, cache_bytes=1 << 22, dtypes=("fp32",), blocks=(16,), copies=1 << 16)
    return cases([load_model(config)], size)
