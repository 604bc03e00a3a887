"""The quantized KV formats in NumPy: the codes and scales that the kernels must store, and how far off they may be.

x [..., head size] are keys or values of tokens and heads. `quantize` gives codes and scales, `numbers` reads them back
in float64, `bound` says how far |numbers - x| may go. Layouts are those of `caches.py`, which needs torch; this needs
numpy only.

| format | codes | scales | a number is |
|---|---|---|---|
| int8 | int8 [..., head size] | float16 [...]: max |x| / 127 | code * scale |
| fp8 | uint8 [..., head size], e4m3 | float16 [...]: max |x| / 448 | decoded code * scale |
| fp8_tensor | as fp8 | one float for the tensor, given | decoded code * scale |
| int4 | uint8 [..., head size / 2] | float16 [..., groups, 2]: (max - min) / 15, min | code * scale + zero |

Even channels of int4 are in the low halves. Scales are rounded to float16 before codes are made with them, so what is
left is the error of the codes. A head (int4: a group) with a NaN or an infinity in it gets a NaN scale: it reads back
as NaN, never as a number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Halves = NDArray[np.float16]
Codes = NDArray[np.int8] | NDArray[np.uint8]

FP8_MAX = 448.0
HALF_MAX = 65504.0
HALF_STEP = 2.0**-24  # between subnormal float16 numbers
SLACK = 1 + 2.0**-15  # float32 arithmetic of up to 127 steps


def quantize(x: ArrayLike, format: str, *, group: int = 32, tensor_scale: float = 1.0) -> tuple[Codes, Halves | None]:
    """Codes and scales of x in a format of the table above (scales None for fp8_tensor)."""
    x = np.asarray(x, np.float32)
    if format == "int8":
        scale = rounded(largest(x) / np.float32(127))
        return np.rint(np.clip(over(x, scale), -127, 127)).astype(np.int8), scale
    if format == "fp8":
        scale = rounded(largest(x) / np.float32(FP8_MAX))
        return fp8_codes(over(x, scale)), scale
    if format == "fp8_tensor":
        return fp8_codes(x * (np.float32(1) / np.float32(tensor_scale))), None
    if format == "int4":
        return int4(x, group)
    raise ValueError(f"{format!r} is none of the formats int8, fp8, fp8_tensor, int4")


def numbers(codes: ArrayLike, scales: ArrayLike | None, format: str, *, tensor_scale: float = 1.0) -> Floats:
    """What codes and scales stand for, [..., head size]."""
    if format == "fp8_tensor" or scales is None:
        return fp8_numbers(codes) * np.float64(np.float32(tensor_scale))
    scales = np.asarray(scales, np.float64)
    if format == "int4":
        packed = np.asarray(codes, np.uint8)
        grouped = np.stack([packed & 15, packed >> 4], -1).reshape(*scales.shape[:-1], -1)
        return np.asarray(grouped * scales[..., :1] + scales[..., 1:]).reshape(*packed.shape[:-1], -1)
    plain = np.asarray(codes, np.float64) if format == "int8" else fp8_numbers(codes)
    return np.asarray(plain * scales[..., None])


def bound(x: ArrayLike, scales: ArrayLike | None, format: str, *, tensor_scale: float = 1.0) -> Floats:
    """Largest |numbers - x| that the format allows, broadcast to x.

    int8 and int4: half a step. fp8: half a unit of the 3-bit mantissa, 1/17 of the number at most, or half a step of
    the subnormals. Or what a scale or zero that float16 rounds cuts off at the end of the range. For finite x within
    65504 * 127 (int8), within 448 scales (fp8_tensor), within 65504 (int4).
    """
    x = np.abs(np.asarray(x, np.float64))
    if format == "int8":
        return np.maximum(np.asarray(scales, np.float64) * SLACK / 2, 127 * HALF_STEP / 2)[..., None]
    if format == "int4":
        scale, zero = np.moveaxis(np.asarray(scales, np.float64), -1, 0)
        each = np.maximum(scale * SLACK / 2, 15 * HALF_STEP / 2) + np.maximum(np.abs(zero) * 2.0**-11, HALF_STEP / 2)
        return np.repeat(each, x.shape[-1] // each.shape[-1], axis=-1)
    scale = np.float64(tensor_scale) if scales is None else np.asarray(scales, np.float64)[..., None]
    return np.maximum(np.maximum(x / 17, scale * 2.0**-10) * SLACK, FP8_MAX * HALF_STEP / 2)


def int4(x: Singles, group: int) -> tuple[NDArray[np.uint8], Halves]:
    if x.shape[-1] % group:
        raise ValueError(f"groups of {group} do not divide a head size of {x.shape[-1]}")
    grouped = x.reshape(*x.shape[:-1], -1, group)
    with np.errstate(invalid="ignore"):
        low = np.clip(grouped.min(-1), -HALF_MAX, HALF_MAX)
        zero = np.where(np.isfinite(grouped).all(-1), low, np.float32(np.nan)).astype(np.float16)
        base = zero.astype(np.float32)
        scale = rounded(np.maximum(grouped.max(-1) - base, 0) / np.float32(15))
        codes = np.rint(np.clip(over(grouped - base[..., None], scale), 0, 15)).astype(np.uint8)
    codes = codes.reshape(x.shape)
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)
    return packed, np.stack([scale, zero], -1)


def largest(x: Singles) -> Singles:
    """max |x| of each head; NaN if some number is not finite."""
    return np.where(np.isfinite(x).all(-1), np.abs(x).max(-1), np.float32(np.nan))


def rounded(scale: Singles) -> Halves:
    """To float16, kept finite: bfloat16 reaches further."""
    return np.minimum(scale, np.float32(HALF_MAX)).astype(np.float16)


def over(x: Singles, scale: Halves) -> Singles:
    """x / scale as the kernels compute it, times the reciprocal in float32; 0 where the scale is 0 or NaN."""
    wide = scale.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(wide > 0, x * (np.float32(1) / wide), np.float32(0))


def fp8_values() -> Floats:
    """What each of the 256 e4m3 codes stands for (OCP 8-bit floating point specification): bias 7, no infinity."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(code & 127 == 127, np.nan, np.where(code < 128, magnitude, -magnitude))


def fp8_numbers(codes: ArrayLike) -> Floats:
    return np.take(fp8_values(), np.asarray(codes, np.intp))


def fp8_codes(x: Singles) -> NDArray[np.uint8]:
    """The nearest e4m3 code, ties to even, saturated at +-448; NaN becomes 0x7f."""
    positive = fp8_values()[:127]
    magnitude = np.minimum(np.abs(x.astype(np.float64)), FP8_MAX)
    above = np.searchsorted(positive, np.nan_to_num(magnitude)).clip(1, 126)
    up, down = positive[above] - magnitude, magnitude - positive[above - 1]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, above - 1)
    return np.where(np.isnan(x), 0x7F, code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)
