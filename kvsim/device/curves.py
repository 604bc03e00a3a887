"""Curves of a device profile: time = physical form (`forms`) × ratio, the ratio interpolated linearly in its axes.

A ratio is measured time ÷ form time, so 1.0 everywhere is the form itself (files say `percent`, where that loses no
digit). Axes are tokens, bytes or counts, strictly
increasing; outside them the nearest ratio holds. Two-dimensional tables are ragged: every value of the outer axis has
inner knots of its own, since sources rarely measure a full rectangle. Interpolation order: inner axis first (within
each of the two enclosing outer rows), then the outer axis.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvsim.device.dtypes import canonical
from kvsim.device.forms import CollectiveForm, DecodeForm, MatmulForm, MemoryForm, PrefillForm
from kvsim.device.keys import AttentionKey, MoeKey
from kvsim.device.percent import Tabulated
from kvsim.device.provenance import Frozen, NotNegative, Positive

Axis = Annotated[tuple[NotNegative, ...], Field(min_length=1)]
Ratios = Annotated[tuple[Positive, ...], Field(min_length=1)]

MemoryOp = Literal["copy", "append", "score", "norm", "rope", "act", "embed", "sample", "host_copy"]
"""Kernels that only move bytes; `bytes` = read + written:
copy       gather, compaction, reallocation, copy-on-write: 2 × the bytes moved
append     K and V of m tokens, one layer: read in 2-byte activations, written in the cache's dtype
score      one layer's eviction scores over t cached tokens: t·(bytes of K + 8 per KV head)
norm       residual add and RMS norm: m·hidden·2 bytes × 4
rope       m·(heads + kv_heads)·head_dim·2 bytes × 2
act        gated activation: m·inter·2 bytes × 3
embed      m·hidden·2 bytes × 2
sample     rows·vocab·4 bytes
host_copy  between device and pinned host memory: the bytes moved, over the host link's bandwidth"""


def increasing(axis: tuple[float, ...], name: str) -> None:
    """Raises ValueError unless `axis` strictly increases."""
    if any(low >= high for low, high in pairwise(axis)):
        raise ValueError(f"{name} must strictly increase")


class Ragged(Tabulated):
    """ratio[i][j] at (outer[i], inner[i][j])."""

    outer: Axis
    inner: tuple[Axis, ...]
    ratio: tuple[Ratios, ...]

    @cached_property
    def flat(self) -> bool:
        """Whether one ratio holds everywhere."""
        return len(self.outer) == len(self.inner[0]) == 1

    @model_validator(mode="after")
    def _aligned(self) -> Ragged:
        increasing(self.outer, "outer")
        if not len(self.outer) == len(self.inner) == len(self.ratio):
            raise ValueError(f"{len(self.outer)} outer values need as many rows of inner and ratio")
        for at, knots, ratios in zip(self.outer, self.inner, self.ratio, strict=True):
            increasing(knots, f"inner at {at:g}")
            if len(knots) != len(ratios):
                raise ValueError(f"at {at:g}: {len(knots)} knots and {len(ratios)} ratios")
        return self


class SkewTable(Frozen):
    """Unequal lengths in a batch: time = t(mean) + alpha·(t(longest) − t(mean)), both for the whole batch at that
    length; alpha[i][j] at (sequences[i], longest ÷ mean = skew[j])."""

    sequences: Axis
    skew: Axis
    alpha: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...]

    @model_validator(mode="after")
    def _aligned(self) -> SkewTable:
        increasing(self.sequences, "sequences")
        increasing(self.skew, "skew")
        if len(self.alpha) != len(self.sequences) or any(len(row) != len(self.skew) for row in self.alpha):
            raise ValueError("alpha must have a row per value of sequences and a column per value of skew")
        return self


class DecodeCurve(Frozen):
    """One decode attention kernel. Axes: outer = sequences, inner = mean attended tokens of a sequence."""

    key: AttentionKey
    form: DecodeForm
    table: Ragged
    source: str
    skew: SkewTable | None = None
    """in steps that only decode"""
    skew_mixed: SkewTable | None = None
    """in steps that also hold prefill chunks: t is then the whole attention kernel's time"""


class PrefillCurve(Frozen):
    """One prefill attention kernel. Axes: outer = tokens computed (all chunks of the step), inner = attended tokens a
    computed token, averaged: context + (chunk + 1)/2 for one chunk without a window."""

    key: AttentionKey
    form: PrefillForm
    table: Ragged
    source: str


class MixedCurve(Tabulated):
    """One kernel over prefill chunks and decode sequences: its time ÷ (prefill curve + decode curve of the same key),
    ratio[a][b][c][d] at tokens[a], context[b] (cached before the chunk, weighted by tokens), sequences[c],
    attended[d] (mean of the decode sequences). Linear in all four, last axis first."""

    key: AttentionKey
    tokens: Axis
    context: Axis
    sequences: Axis
    attended: Axis
    ratio: tuple[tuple[tuple[Ratios, ...], ...], ...]
    source: str

    @model_validator(mode="after")
    def _aligned(self) -> MixedCurve:
        for name in ("tokens", "context", "sequences", "attended"):
            increasing(getattr(self, name), name)
        shape = (len(self.tokens), len(self.context), len(self.sequences), len(self.attended))
        cube = [row for plane in self.ratio for row in plane]
        lengths = {len(plane) for plane in self.ratio} | {len(self.context)}
        widths = {len(row) for row in cube} | {len(self.sequences)}
        depths = {len(cell) for row in cube for cell in row} | {len(self.attended)}
        if len(self.ratio) != len(self.tokens) or len(lengths) > 1 or len(widths) > 1 or len(depths) > 1:
            raise ValueError(f"ratio must have the shape {shape} of its axes")
        return self


class LinearTable(Tabulated):
    """Linear layers of one weight dtype: ratio[i][j] for shapes[i] = (N, K) at rows m[j]."""

    dtype: str
    form: MatmulForm
    m: Axis
    shapes: tuple[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], ...]
    ratio: tuple[Ratios, ...]
    source: str

    @field_validator("dtype")
    @classmethod
    def _canonical(cls, name: str) -> str:
        return canonical(name)

    @model_validator(mode="after")
    def _aligned(self) -> LinearTable:
        increasing(self.m, "m")
        if not self.shapes or len(self.shapes) != len(self.ratio) or any(len(r) != len(self.m) for r in self.ratio):
            raise ValueError("ratio must have a row per shape and a column per value of m")
        if len(set(self.shapes)) != len(self.shapes):
            raise ValueError("a shape (N, K) appears twice")
        return self


class MoeCurve(Tabulated):
    """Routed experts of one layer: ratio[j] at m[j] tokens."""

    key: MoeKey
    dtype: str
    form: MatmulForm
    m: Axis
    ratio: Ratios
    source: str

    @field_validator("dtype")
    @classmethod
    def _canonical(cls, name: str) -> str:
        return canonical(name)

    @model_validator(mode="after")
    def _aligned(self) -> MoeCurve:
        increasing(self.m, "m")
        if len(self.m) != len(self.ratio):
            raise ValueError(f"{len(self.m)} values of m and {len(self.ratio)} ratios")
        return self


class MemoryCurve(Tabulated):
    """A kernel that only moves bytes: ratio[j] at bytes[j] read and written."""

    op: MemoryOp
    dtype: str = "bf16"
    """of what is written: the cache's dtype for append and score"""
    form: MemoryForm
    bytes: Axis
    ratio: Ratios
    source: str

    @field_validator("dtype")
    @classmethod
    def _canonical(cls, name: str) -> str:
        return canonical(name)

    @model_validator(mode="after")
    def _aligned(self) -> MemoryCurve:
        increasing(self.bytes, "bytes")
        if len(self.bytes) != len(self.ratio):
            raise ValueError(f"{len(self.bytes)} values of bytes and {len(self.ratio)} ratios")
        return self


class CollectiveCurve(Tabulated):
    """An all-reduce among `gpus` devices of one node: ratio[j] at bytes[j] of one device's buffer."""

    op: Literal["all_reduce"] = "all_reduce"
    gpus: Annotated[int, Field(ge=2)]
    form: CollectiveForm
    bytes: Axis
    ratio: Ratios
    source: str

    @model_validator(mode="after")
    def _aligned(self) -> CollectiveCurve:
        increasing(self.bytes, "bytes")
        if len(self.bytes) != len(self.ratio):
            raise ValueError(f"{len(self.bytes)} values of bytes and {len(self.ratio)} ratios")
        return self


class Curves(Frozen):
    """All curves of a profile. An empty one is a datasheet profile: every cost is then the physical form."""

    decode: tuple[DecodeCurve, ...] = ()
    prefill: tuple[PrefillCurve, ...] = ()
    mixed: tuple[MixedCurve, ...] = ()
    linear: tuple[LinearTable, ...] = ()
    moe: tuple[MoeCurve, ...] = ()
    memory: tuple[MemoryCurve, ...] = ()
    collective: tuple[CollectiveCurve, ...] = ()

    def sources(self) -> set[str]:
        """names of the provenances the curves refer to"""
        families = (self.decode, self.prefill, self.mixed, self.linear, self.moe, self.memory, self.collective)
        return {curve.source for family in families for curve in family}
