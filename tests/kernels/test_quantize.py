"""The quantizers' reference: bounds, exact cases, and torch's fp8 as a second witness."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from kvsim_kernels.reference import quantize as q

FORMATS = ["int8", "fp8", "int4"]


def spread(random: np.random.Generator) -> np.ndarray:
    """Heads of size about 10^-8, 10^-3 and 100."""
    return (random.standard_normal((3, 64)) * 10.0 ** np.arange(-8, 7, 5)[:, None]).clip(-6e4, 6e4)


heads = arrays.arrays(
    np.float32, (3, 64), elements=st.floats(-6e4, 6e4, width=32, allow_subnormal=False)
) | st.integers(0, 2**32 - 1).map(lambda seed: spread(np.random.default_rng(seed)))


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=60, deadline=None)
@given(x=heads)
def test_no_number_is_off_by_more_than_the_bound(format: str, x: np.ndarray) -> None:
    x = x.astype(np.float32)
    codes, scales = q.quantize(x, format)
    assert (np.abs(q.numbers(codes, scales, format) - x) <= q.bound(x, scales, format)).all()


def test_the_bounds_are_tight() -> None:
    """Some number comes within 2 % of what is allowed: a looser bound would hide a wrong rounding."""
    x = np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float32)
    for format in FORMATS:
        codes, scales = q.quantize(x, format)
        used = np.abs(q.numbers(codes, scales, format) - x) / q.bound(x, scales, format)
        assert used.max() > 0.98, format


def test_int8_by_hand() -> None:
    codes, scales = q.quantize([[127.0, -63.5, 0.5, 1.5, -1.5, 0]], "int8")
    assert codes.tolist() == [[127, -64, 0, 2, -2, 0]] and scales is not None and scales.tolist() == [1.0]


def test_int4_by_hand() -> None:
    x = np.arange(32, dtype=np.float32) % 16 - 3
    codes, scales = q.quantize(x, "int4")
    assert codes.tolist() == [2 * i + (2 * i + 1) * 16 for i in range(8)] * 2
    assert scales is not None and scales.tolist() == [[1.0, -3.0]]
    assert q.numbers(codes, scales, "int4").tolist() == x.tolist()


def test_fp8_codes_are_torchs() -> None:
    values = q.fp8_values()
    midpoints = (values[:126] + values[1:127]) / 2
    x = np.concatenate(
        [values[:127], midpoints, np.nextafter(midpoints.astype(np.float32), np.float32(0)), [0.0, 448, 1e-9]]
    )
    x = np.concatenate([x, -x]).astype(np.float32)
    assert np.array_equal(q.fp8_codes(x), torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy())
    every = torch.arange(256, dtype=torch.uint8)
    np.testing.assert_array_equal(q.fp8_numbers(every), every.view(torch.float8_e4m3fn).double().numpy())
    assert q.fp8_codes(np.float32([1e9, -np.inf, np.nan])).tolist() == [0x7E, 0xFE, 0x7F]


def test_fp8_with_one_scale_for_the_tensor() -> None:
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    codes, scales = q.quantize(x, "fp8_tensor", tensor_scale=0.01)
    assert scales is None
    back = q.numbers(codes, None, "fp8_tensor", tensor_scale=0.01)
    assert (np.abs(back - x) <= q.bound(x, None, "fp8_tensor", tensor_scale=0.01)).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_head_that_is_not_finite_reads_back_as_nan(format: str, bad: float) -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 3] = bad
    back = q.numbers(*q.quantize(x, format), format)
    assert np.isnan(back[1, :32]).all() and np.isfinite(back[0]).all()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [0.0, 3.3, -1e-7])
def test_constant_heads(format: str, value: float) -> None:
    x = np.full((1, 64), value, np.float32)
    codes, scales = q.quantize(x, format)
    assert (np.abs(q.numbers(codes, scales, format) - x) <= q.bound(x, scales, format)).all()


def test_bad_input_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="groups of 64 do not divide a head size of 96"):
        q.quantize(np.zeros(96), "int4", group=64)
    with pytest.raises(ValueError, match="'int3' is none of the formats"):
        q.quantize(np.zeros(96), "int3")


def test_needs_numpy_only() -> None:
    """Imported from its file, as work on accuracy does where there is no torch."""
    code = f"import sys; sys.modules['torch'] = None; exec(open({q.__file__!r}).read())"
    subprocess.run([sys.executable, "-c", code], check=True)
