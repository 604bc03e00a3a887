"""Bytes of number formats, scales included."""

from __future__ import annotations

import pytest

from kvsim.errors import InputError
from kvsim.precision import FORMATS, canonical, kv_bytes, matrix_bytes, row_bytes


@pytest.mark.parametrize(
    ("dtype", "head_dim", "expected"),
    [
        ("fp32", 128, 1024),
        ("bf16", 128, 512),
        ("fp16", 64, 256),
        ("fp8", 128, 256),
        ("int8", 128, 256 + 2 * 2),  # one fp16 scale for the key row, one for the value row
        ("int8", 64, 128 + 2 * 2),
        ("int4", 128, 128 + 2 * 4 * 4),  # fp16 scale and zero for each 32 channels
        ("int4", 80, 80 + 2 * 3 * 4),  # the last group is shorter
        ("nvfp4", 128, 128 + 2 * 8),
    ],
)
def test_bytes_of_a_token_and_head(dtype: str, head_dim: int, expected: int) -> None:
    assert kv_bytes(dtype, 1, head_dim) == expected
    assert kv_bytes(dtype, 7, head_dim) == 7 * expected


def test_int8_holds_nearly_twice_the_tokens() -> None:
    """The shares that docs/cache-policies.md states."""
    assert kv_bytes("bf16", 8, 64) / kv_bytes("int8", 8, 64) == pytest.approx(1.94, abs=0.005)
    assert kv_bytes("bf16", 8, 128) / kv_bytes("int8", 8, 128) == pytest.approx(1.97, abs=0.005)


def test_mla_caches_one_row_for_all_heads() -> None:
    assert kv_bytes("bf16", 1, 576, 512, latent=True) == 1152
    assert kv_bytes("int8", 1, 576, 512, latent=True) == 576 + 2


def test_values_may_be_shorter_than_keys() -> None:
    assert kv_bytes("bf16", 2, 192, 128) == 2 * (192 + 128) * 2


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bf16", 2 * 4096 * 1024),
        ("fp8", 4096 * 1024),
        ("int8", 1024 * (4096 + 2)),
        ("int4", 1024 * (2048 + 32 * 5 // 2)),  # 32 groups of a 16-bit scale and a 4-bit zero
        ("mxfp4", 1024 * (2048 + 128)),
        ("nvfp4", 1024 * (2048 + 256)),
    ],
)
def test_bytes_of_a_weight_matrix(dtype: str, expected: int) -> None:
    assert matrix_bytes(1024, 4096, dtype) == expected


def test_names() -> None:
    assert canonical("bfloat16") == "bf16"
    assert canonical("FP8_E4M3") == "fp8"
    assert [canonical(name) for name in FORMATS] == list(FORMATS)
    with pytest.raises(InputError, match="unknown number format 'bf15': did you mean bf16"):
        row_bytes(128, "bf15")
