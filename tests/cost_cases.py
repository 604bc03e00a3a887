"""Geometries, profiles and shapes for the cost tests."""

from __future__ import annotations

from datetime import date

from hypothesis import strategies as st

from kvsim.cost import Geometry, StepShape
from kvsim.cost.geometry import Attention, Experts, Linear, Memory
from kvsim.device import (
    SCHEMA,
    AttentionKey,
    CollectiveCurve,
    Curves,
    DecodeCurve,
    DeviceProfile,
    FallbackErrors,
    HeldOutError,
    LinearTable,
    MixedCurve,
    MoeKey,
    PrefillCurve,
    Provenance,
    Ragged,
    SkewTable,
    load_device,
)
from kvsim.device.datasheet import GPU


def geometry(*, tp: int = 1, heads: int = 32, kv_heads: int = 8, hidden: int = 4096, inter: int = 14336,
             layers: int = 32, vocab: int = 128256, dtype: str = "bf16", kv_dtype: str = "bf16", window: int = 0,
             kernel: str = "flash", experts: int = 0) -> Geometry:
    """A Llama-like model (Llama-3.1-8B by default); with `window`, every other layer is windowed; with `experts`,
    the MLP is routed to two of them."""
    def key(width: int) -> AttentionKey:
        return AttentionKey(heads=heads // tp, kv_heads=max(kv_heads // tp, 1), head_dim=128, kv_dtype=kv_dtype,
                            block_size=16, window=width, kernel=kernel)

    full = Attention(key(0), key(0), layers)
    groups = (full,) if not window else (Attention(key(0), key(0), layers // 2),
                                         Attention(key(window), key(window), layers // 2))
    linear = [Linear("qkv", (heads + 2 * kv_heads) * 128 // tp, hidden, dtype, layers),
              Linear("o", hidden, heads * 128 // tp, dtype, layers)]
    if not experts:
        linear += [Linear("gate_up", 2 * inter // tp, hidden, dtype, layers),
                   Linear("down", hidden, inter // tp, dtype, layers)]
    routed = MoeKey(hidden=hidden, inter=inter // tp, experts=experts or 1, top_k=min(2, experts or 1))
    row = key(0).read_bytes_per_token
    return Geometry(
        attention=groups, linear=tuple(linear), head=Linear("lm_head", vocab // tp, hidden, "bf16", 1),
        sample_bytes_per_row=vocab * 4.0, experts=(Experts(routed, dtype, layers),) if experts else (),
        memory=(Memory("norm", 8.0 * hidden, 2 * layers), Memory("append", 2 * row, layers, kv_dtype)),
        score_bytes_per_token=layers * row / 2, reductions=2 * layers if tp > 1 else 0,
        reduce_bytes_per_token=2.0 * hidden, gpus=tp)


GOOD = HeldOutError(median=0.02, p95=0.08, rows=100)


def provenance(tier: str = "imported") -> Provenance:
    return Provenance(tier=tier, source="made up for tests", date=date(2026, 11, 29), points=GOOD, keys=GOOD,
                      fallback=FallbackErrors(interpolated=HeldOutError(median=0.03, p95=0.12),
                                              nearest=HeldOutError(median=0.06, p95=0.25),
                                              form=HeldOutError(median=0.1, p95=0.4),
                                              beyond=HeldOutError(median=0.08, p95=0.3)))


def profile(**curves: object) -> DeviceProfile:
    """The H100's facts with these curves, all of source `test`."""
    return DeviceProfile(schema=SCHEMA, id="test", name="test", facts=load_device("h100-sxm").facts,
                         date=date(2026, 11, 29), curves=Curves(**curves), provenance={"test": provenance()})


KEY = AttentionKey(heads=32, kv_heads=8, head_dim=128, block_size=16)
SKEW = SkewTable(sequences=(2, 64), skew=(1.0, 2.0, 8.0), alpha=((0.0, 0.3, 0.6), (0.0, 0.05, 0.1)))


def decode_curve(ratio: float, **key: object) -> DecodeCurve:
    """Of KEY, or of it with these changes: `ratio` times its form everywhere."""
    table = Ragged(outer=(1, 512), inner=((16, 8192), (16, 8192)), ratio=((ratio, ratio),) * 2)
    return DecodeCurve(key=KEY.model_copy(update=key), form=GPU.decode, table=table, source="test")


def curved() -> DeviceProfile:
    """A profile in which every table bends."""
    waves = Ragged(outer=(1, 4, 32, 256), inner=((64, 512, 4096), (100, 1000), (64, 512, 4096, 16384), (64, 4096)),
                   ratio=((1.4, 1.1, 0.9), (1.2, 1.0), (1.3, 1.15, 1.0, 0.97), (1.05, 0.98)))
    prefill = Ragged(outer=(16, 256, 4096), inner=((8, 1000), (128, 4096), (2048, 8192)),
                     ratio=((2.0, 1.5), (1.2, 1.1), (0.9, 0.95)))
    mixed = tuple(tuple(tuple(tuple(1.0 + 0.1 * (a + b + c + d) for d in range(2)) for c in range(2))
                        for b in range(2)) for a in range(2))
    return profile(
        decode=(DecodeCurve(key=KEY, form=GPU.decode, table=waves, source="test", skew=SKEW, skew_mixed=SKEW),),
        prefill=(PrefillCurve(key=KEY, form=GPU.prefill, table=prefill, source="test"),),
        mixed=(MixedCurve(key=KEY, tokens=(16, 2048), context=(0, 4096), sequences=(1, 64), attended=(16, 4096),
                          ratio=mixed, source="test"),),
        linear=(LinearTable(dtype="bf16", form=GPU.linear, m=(1, 64, 512, 4096),
                            shapes=((4096, 4096), (4096, 14336), (6144, 4096), (28672, 4096)),
                            ratio=((1.3, 1.1, 1.0, 0.9), (1.2, 1.1, 1.0, 0.9), (1.1, 1.0, 1.0, 0.9),
                                   (1.0, 1.0, 0.95, 0.9)), source="test"),),
        collective=(CollectiveCurve(gpus=2, form=GPU.collective, bytes=(1e3, 1e6, 1e8), ratio=(0.8, 1.1, 1.0),
                                    source="test"),))


@st.composite
def decode_shapes(draw: st.DrawFn, windows: tuple[int, ...] = (0,)) -> StepShape:
    """A step of decoding sequences whose lengths are drawn, seen through each window (0: none)."""
    lengths = draw(st.lists(st.integers(1, 40_000), min_size=1, max_size=40))
    attended, longest, growing, grows = [], [], [], []
    for window in windows:
        seen = [min(length, window) if window else length for length in lengths]
        attended.append(sum(seen))
        longest.append(max(seen))
        growing.append(sum(not window or length < window for length in lengths))
        grows.append(not window or max(lengths) < window)
    n = len(lengths)
    return StepShape(decode=n, attended=tuple(attended), longest=tuple(longest), growing=tuple(growing),
                     longest_grows=tuple(grows), sampled=n,
                     scored=draw(st.sampled_from([0, 0, 5000])), moved_bytes=draw(st.sampled_from([0, 0, 10**7])))


def later(shape: StepShape, j: int) -> StepShape:
    """The shape j steps on."""
    return StepShape(decode=shape.decode, attended=tuple(a + j * g for a, g in zip(shape.attended, shape.growing,
                                                                                   strict=True)),
                     longest=tuple(x + j * g for x, g in zip(shape.longest, shape.longest_grows, strict=True)),
                     growing=shape.growing, longest_grows=shape.longest_grows, sampled=shape.sampled,
                     scored=shape.scored + j * shape.growing[0] if shape.scored else 0,
                     moved_bytes=0 if j else shape.moved_bytes)


def decoding(n: int, context: int, groups: int = 1) -> StepShape:
    """n sequences of the same length."""
    return StepShape(decode=n, attended=(n * context,) * groups, longest=(context,) * groups, growing=(n,) * groups,
                     longest_grows=(True,) * groups, sampled=n)
