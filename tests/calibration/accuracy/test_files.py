"""Models as they lie on disk, and their tokenizers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kvsim_calibration.accuracy import measure
from kvsim_calibration.accuracy.gguf import Gguf
from kvsim_calibration.accuracy.policies import Policy
from kvsim_calibration.accuracy.tokenizer import BytePairs, HuggingFace
from kvsim_calibration.accuracy.weights import load
from kvsim_calibration.engine.model import Llama, random_weights
from small_model import DIMS

from kvsim.errors import InputError


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> None:
    """A GGUF file of strings, uint32, float32 and lists of strings."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(item: Any) -> bytes:
        if isinstance(item, str):
            return struct.pack("<I", 8) + text(item)
        if isinstance(item, list):
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        return struct.pack("<If", 6, item) if isinstance(item, float) else struct.pack("<II", 4, item)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + value(item) for key, item in metadata.items())
    body = b""
    for name, (shape, format, data) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), format, len(body))
        body += data + b"\0" * (-len(data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def test_a_gguf_file_is_read(tmp_path: Path) -> None:
    packed = bytes(range(16))  # numbers 0 … 15 low, 0 … 0 high
    half = np.array([0.5, -2.0], np.float16).tobytes()
    write_gguf(tmp_path / "a.gguf", {"general.architecture": "llama", "eps": 1e-5, "n": 7, "words": ["a", "é"]}, {
        "plain": ((2, 3), 0, np.arange(6, dtype=np.float32).tobytes()),
        "q4_1": ((1, 32), 3, half + packed),
        "q4_0": ((1, 32), 2, half[:2] + packed),
        "q8_0": ((1, 32), 8, half[:2] + bytes(range(240, 256)) + bytes(16)),
        "other": ((1, 32), 14, bytes(32)),
    })
    file = Gguf(tmp_path / "a.gguf")
    assert file.metadata["words"] == ["a", "é"] and file.metadata["n"] == 7
    assert file.read("plain").tolist() == [[0, 1, 2], [3, 4, 5]]
    low = np.arange(16)
    assert file.read("q4_1")[0].tolist() == [*(low * 0.5 - 2), *[-2.0] * 16]
    assert file.read("q4_0")[0].tolist() == [*((low - 8) * 0.5), *[-4.0] * 16]
    assert file.read("q8_0")[0].tolist() == [*(np.arange(-16, 0) * 0.5), *[0.0] * 16]
    with pytest.raises(InputError, match="type 14"):
        file.read("other")
    whole = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:100])
    with pytest.raises(InputError, match="cut short"):
        Gguf(tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes(whole[:-40])
    with pytest.raises(InputError, match="other has GGUF type 14"):
        Gguf(tmp_path / "cut.gguf").read("other")
    (tmp_path / "no.gguf").write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(InputError, match="is not a GGUF file"):
        Gguf(tmp_path / "no.gguf")


def test_pairs_are_merged_by_rank() -> None:
    tokens = [*BytePairs([], [])._characters, "he", "ll", "hell", "Ġw"]
    pairs = BytePairs(tokens, ["l l", "h e", "he ll", "Ġ w"])
    ids = pairs.encode("hello world 12")
    assert [tokens[i] for i in ids] == ["hell", "o", "Ġw", "o", "r", "l", "d", "Ġ", "1", "2"]
    assert pairs.decode(ids) == "hello world 12"


def test_smollm2_tokens_are_those_of_the_tokenizers_package(smollm2: Path) -> None:
    pairs = BytePairs.from_gguf(Gguf(smollm2).metadata, smollm2)
    text = "I'm  here\t12 34.5 x_y __z__ é½ ²  日本\n\n  end 😀 Ⅷ١ cafe\u0301  "
    assert pairs.encode(text) == [  # tokenizers 0.23 with Digits(individual) and ByteLevel
        57, 5248, 216, 1535, 197, 33, 34, 216, 35, 36, 30, 37, 1792, 79, 105, 2758, 106, 890, 26411, 16738, 216, 19133,
        216, 17097, 241, 115, 40993, 8866, 1112, 40303, 218, 216, 173, 223, 117, 164, 111, 1020, 4565, 151, 219, 256,
    ]  # fmt: skip
    assert pairs.decode(pairs.encode(text)) == text


def test_a_hugging_face_folder(model: Llama, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tokenizers = pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load(tmp_path)
    weights = random_weights(DIMS, seed=1, scale=2.5)
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32,
        "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 4096,
        "tie_word_embeddings": False, "torch_dtype": "float32", "rms_norm_eps": 1e-5,
    }))
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "b": 2}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    loaded = load(tmp_path)
    assert loaded.max_len == 4096 and loaded.tokenizer.encode("a b b") == [1, 2, 2] and loaded.tokenizer.begin == []
    ids = list(range(30))
    rows, same = (list(measure.compare(m, ids, 20, [Policy("int8")])) for m in (loaded.model, model))
    assert [row.nll for row in rows] == [row.nll for row in same]


def test_a_text_begins_as_the_folder_says(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")

    def begin(config: dict[str, Any] | None, template: str | None) -> list[int]:
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 1, "<s>": 7, "</s>": 8}, unk_token="a"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        if template:
            words.post_processor = tokenizers.processors.TemplateProcessing(
                single=template, special_tokens=[("<s>", 7), ("</s>", 8)])  # fmt: skip
        words.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = HuggingFace(tmp_path)
        assert tokenizer.encode("a a") == [1, 1]
        return tokenizer.begin

    assert begin(None, None) == begin({"bos_token": "<s>"}, None) == begin({}, "$A </s>") == []
    assert begin(None, "<s> $A") == begin({"bos_token": None}, "<s> $A </s>") == [7]
    assert begin({"add_bos_token": True, "bos_token": "<s>"}, None) == [7]
    assert begin({"add_bos_token": True, "bos_token": {"content": "<s>", "special": True}}, None) == [7]
    assert begin({"add_bos_token": False, "bos_token": "<s>"}, "<s> $A") == []
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json: is no JSON"):
        HuggingFace(tmp_path)


def test_a_gguf_file_says_whether_a_text_begins_with_a_token() -> None:
    facts = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["a"],
             "tokenizer.ggml.merges": [], "tokenizer.ggml.bos_token_id": 3}  # fmt: skip
    assert BytePairs.from_gguf(facts, "file").begin == []
    assert BytePairs.from_gguf({**facts, "tokenizer.ggml.add_bos_token": True}, "file").begin == [3]
