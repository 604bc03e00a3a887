"""Physical forms: what a kernel's time would be if one efficiency held everywhere.

A curve of a profile is such a form times an interpolated ratio (`kvsim.device.curves`). The forms are part of the
profile's meaning, so the fit (kvsim_calibration) and the simulator (kvsim.cost) share these functions.
All use + − × ÷, floor and a maximum only: a Python float and a NumPy float64 give the same bits. Pass
`maximum=np.maximum` to evaluate whole columns. Times are float ns, sizes bytes, lengths tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from kvsim.device.facts import Facts
from kvsim.device.keys import AttentionKey, MoeKey
from kvsim.device.provenance import Frozen, NotNegative, Positive

Number = Any  # a Python number or a NumPy array of them
ACTIVATION_BYTES = 2
"""activations travel as bf16 or fp16"""


class DecodeForm(Frozen):
    """fixed + per_head·n·kv_heads + n·context·kv_heads·max(row_bytes·(1 + fill ÷ (n·kv_heads)) ÷ (efficiency·BW),
    flops ÷ (flop_efficiency·peak))."""

    fixed_ns: NotNegative
    per_head_ns: NotNegative
    """per sequence and KV head"""
    fill: NotNegative
    """few sequences × KV heads leave the device idle: bandwidth is halved where n·kv_heads equals this"""
    efficiency: Positive
    flop_efficiency: Positive = 0.6


class PrefillForm(Frozen):
    """fixed + per_chunk·chunks + tile-padded FLOPs ÷ (flop_efficiency·peak) + bytes ÷ (byte_efficiency·BW).

    A sum, not a maximum: a block of queries starts and ends with loads that nothing hides. On H100 time ÷ FLOPs follows
    1/0.65 + 1220/chunk within a few percent from 128 to 16,384 tokens."""

    fixed_ns: NotNegative
    per_chunk_ns: NotNegative = 0.0
    tile: Annotated[int, Field(ge=1)] = 128
    """rows of queries a block works on: chunks are padded to it"""
    flop_efficiency: Positive
    byte_efficiency: Positive


class MatmulForm(Frozen):
    """fixed + max(bytes ÷ (byte_efficiency·BW), 2·N·K·m padded to tile ÷ (flop_efficiency·peak))."""

    fixed_ns: NotNegative
    tile: Annotated[int, Field(ge=1)] = 1
    flop_efficiency: Positive
    byte_efficiency: Positive


class MemoryForm(Frozen):
    """fixed + bytes read and written ÷ (efficiency·BW)."""

    fixed_ns: NotNegative
    efficiency: Positive


class CollectiveForm(Frozen):
    """fixed + bytes·2·(g − 1)/g ÷ (efficiency·link bandwidth): a ring, g devices, bytes of one device's buffer."""

    fixed_ns: NotNegative
    efficiency: Positive


def decode_coefficients(form: DecodeForm, key: AttentionKey, facts: Facts, n: Number,
                        maximum: Callable[..., Any] = max) -> tuple[Number, Number]:
    """(fixed ns, ns per attended token) of one decode attention kernel over `n` sequences.

    The form is fixed + per_token · (tokens attended by all sequences together)."""
    streams = n * key.kv_heads
    fixed = form.fixed_ns + form.per_head_ns * streams
    by_bytes = (key.read_bytes_per_token * 1e9 / (form.efficiency * facts.bandwidth)) * (1.0 + form.fill / streams)
    by_flops = key.flops_per_pair * 1e9 / (form.flop_efficiency * facts.peak_flops("bf16"))
    return fixed, maximum(by_bytes, by_flops)


def causal_pairs(tokens: Number, context: Number, window: int = 0, tile: int = 1,
                 maximum: Callable[..., Any] = max) -> Number:
    """(query, key) pairs of a chunk of `tokens` queries behind `context` cached tokens: each query meets its own
    key and those before it, at most `window` of them (0: no limit). Queries are padded to `tile`."""
    padded = -(-tokens // tile) * tile
    total = padded * context + padded * (padded + tile) // 2
    if window:
        hidden = maximum(context + tokens - window, 0)
        before = maximum(context - window, 0)
        total = total - (hidden * (hidden + 1) - before * (before + 1)) // 2
    return total


def prefill_work(form: PrefillForm, key: AttentionKey, tokens: Number, context: Number,
                 maximum: Callable[..., Any] = max) -> tuple[Number, Number]:
    """(FLOPs, bytes) of one chunk; a step's chunks add up."""
    bytes_ = (tokens * (key.heads * (key.head_dim + key.value_dim) * ACTIVATION_BYTES)
              + (context + tokens) * key.read_bytes_per_token)
    if key.kernel == "naive":  # the whole rectangle; its scores go out, in and out of the softmax, and in again
        rectangle = tokens * (context + tokens)
        return rectangle * key.flops_per_pair, bytes_ + 4 * ACTIVATION_BYTES * key.heads * rectangle
    return causal_pairs(tokens, context, key.window, form.tile, maximum) * key.flops_per_pair, bytes_


def prefill_ns(form: PrefillForm, facts: Facts, chunks: Number, flops: Number, bytes_: Number) -> Number:
    """Time of one prefill attention kernel over `chunks` chunks with the given total work."""
    by_flops = flops * 1e9 / (form.flop_efficiency * facts.peak_flops("bf16"))
    by_bytes = bytes_ * 1e9 / (form.byte_efficiency * facts.bandwidth)
    return form.fixed_ns + form.per_chunk_ns * chunks + by_flops + by_bytes


def matmul_ns(form: MatmulForm, facts: Facts, n: Number, k: Number, m: Number, weight_bytes: float, compute: str,
              maximum: Callable[..., Any] = max) -> Number:
    """Time of Y[m, N] = X[m, K] · W[K, N]; `weight_bytes` an element of W, `compute` a key of `Facts.flops`."""
    padded = -(-m // form.tile) * form.tile
    by_bytes = (n * k * weight_bytes + m * (n + k) * ACTIVATION_BYTES) * 1e9 / (form.byte_efficiency * facts.bandwidth)
    by_flops = 2.0 * n * k * padded * 1e9 / (form.flop_efficiency * facts.peak_flops(compute))
    return form.fixed_ns + maximum(by_bytes, by_flops)


def moe_ns(form: MatmulForm, facts: Facts, key: MoeKey, m: Number, weight_bytes: float, compute: str,
           maximum: Callable[..., Any] = max) -> Number:
    """Time of the routed experts (gate, up and down projections) over m tokens.

    Reads the weights of the experts that get a token when every choice is equally likely: E·(1 − (1 − k/E)^m) of E;
    rows are padded to the form's tile per expert."""
    active = key.experts * (1.0 - (1.0 - key.top_k / key.experts) ** m)
    rows = maximum(m * key.top_k, active * form.tile)
    weights = 3.0 * key.hidden * key.inter
    bytes_ = active * weights * weight_bytes + m * key.top_k * (2 * key.hidden + 3 * key.inter) * ACTIVATION_BYTES
    by_bytes = bytes_ * 1e9 / (form.byte_efficiency * facts.bandwidth)
    by_flops = 2.0 * weights * rows * 1e9 / (form.flop_efficiency * facts.peak_flops(compute))
    return form.fixed_ns + maximum(by_bytes, by_flops)


def memory_ns(form: MemoryForm, bandwidth: float, bytes_: Number) -> Number:
    """Time of a kernel that only moves bytes."""
    return form.fixed_ns + bytes_ * 1e9 / (form.efficiency * bandwidth)


def collective_ns(form: CollectiveForm, facts: Facts, gpus: Number, bytes_: Number) -> Number:
    """Time of an all-reduce of `bytes_` on every one of `gpus` devices."""
    return form.fixed_ns + bytes_ * (2.0 * (gpus - 1) / gpus) * 1e9 / (form.efficiency * facts.link_bandwidth)
