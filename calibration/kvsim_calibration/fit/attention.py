"""Decode and prefill attention: one form for all keys of a source and dtype, a ragged table of ratios for each key."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl

from kvsim.cost.line import Floats
from kvsim.device import AttentionKey, DecodeCurve, Facts, PrefillCurve
from kvsim.device.forms import (
    DecodeForm,
    PrefillForm,
    causal_pairs,
    decode_coefficients,
    prefill_ns,
    prefill_work,
)
from kvsim_calibration.evaluate import attention_key, groups
from kvsim_calibration.fit.holes import borrowed
from kvsim_calibration.fit.robust import fit, spread
from kvsim_calibration.fit.thin import ragged
from kvsim_calibration.rows import KEY

TILES = (64, 128)
"""rows of queries that a block of a flash kernel works on"""
GLITCH = 1.15
"""× the time of rows with more work, beyond which a row is no measurement of the kernel"""
Parts = list[tuple[AttentionKey, pl.DataFrame]]


def parts_of(frame: pl.DataFrame) -> Parts:
    """(key, its rows), key by key."""
    return [(attention_key(key), rows) for key, rows in groups(frame, KEY)]


def floats(frame: pl.DataFrame, *columns: str) -> list[Floats]:
    """Columns as float64."""
    return [frame[name].cast(pl.Float64).to_numpy() for name in columns]


def decode_form(frame: pl.DataFrame, facts: Facts) -> DecodeForm:
    """The constants that fit the rows of all keys."""
    parts = parts_of(frame[spread(frame.height)])
    names = ("kv_heads", "read_bytes_per_token", "flops_per_pair")
    key = SimpleNamespace(**{name: np.concatenate([np.full(rows.height, float(getattr(key, name)))
                                                   for key, rows in parts]) for name in names})
    n, attended, ns = floats(pl.concat([rows for _, rows in parts]), "n", "attended", "ns")

    def form(p: Floats) -> DecodeForm:
        return DecodeForm(fixed_ns=p[0], per_head_ns=p[1], fill=p[2], efficiency=p[3], flop_efficiency=p[4])

    def predict(p: Floats) -> Floats:
        fixed, per_token = decode_coefficients(form(p), key, facts, n, np.maximum)  # type: ignore[arg-type]
        predicted: Floats = fixed + per_token * n * attended
        return predicted

    return form(fit(predict, ns, [10_000, 20, 2, 0.85, 0.6]))


def decode_ratio(form: DecodeForm, key: AttentionKey, facts: Facts, rows: pl.DataFrame) -> Floats:
    """Measured ÷ form of each row."""
    n, attended, ns = floats(rows, "n", "attended", "ns")
    fixed, per_token = decode_coefficients(form, key, facts, n, np.maximum)
    ratio: Floats = ns / (fixed + per_token * (n * attended))
    return ratio


def decode_curves(frame: pl.DataFrame, holes: pl.DataFrame, form: DecodeForm, facts: Facts, source: str,
                  tolerance: float) -> list[DecodeCurve]:
    """A curve a key; at the places of `holes` the ratio follows the kernels like it."""
    rows = pl.concat([steady(rows.with_columns(ratio=decode_ratio(form, key, facts, rows)))
                      for key, rows in parts_of(frame)])
    rows = borrowed(rows, holes, ("n",), "attended")
    return [DecodeCurve(key=key, form=form, table=ragged(_lines(part, "n", "attended"), tolerance), source=source)
            for key, part in parts_of(rows)]


def steady(rows: pl.DataFrame) -> pl.DataFrame:
    """Without glitches: rows that took longer by GLITCH than two with more context did. One of them (A100, 4 heads,
    one sequence of 2 tokens: 44 µs, its neighbours 12) would lift every shorter context, since the simulator lets no
    time fall with context."""
    kept = []
    for _, line in groups(rows, ("n",)):
        line = line.sort("attended")
        ns = line["ns"].to_numpy()
        floor = [np.partition(ns[i + 1:], 1)[1] if len(ns) > i + 2 else np.inf for i in range(len(ns))]
        kept.append(line.filter(ns <= GLITCH * np.array(floor)))
    return pl.concat(kept)


def prefill_form(frame: pl.DataFrame, facts: Facts) -> PrefillForm:
    """The constants, and the tile, that fit the rows of all keys."""
    parts = parts_of(frame[spread(frame.height)])
    chunks, ns = floats(pl.concat([rows for _, rows in parts]), "chunks", "ns")
    best: tuple[float, PrefillForm] | None = None
    for tile in TILES:
        work = [_work(PrefillForm(tile=tile, fixed_ns=0, flop_efficiency=1, byte_efficiency=1), key, rows)
                for key, rows in parts]
        flops, bytes_ = (np.concatenate([w[i] for w in work]) for i in (0, 1))

        def form(p: Floats, tile: int = tile) -> PrefillForm:
            return PrefillForm(fixed_ns=p[0], per_chunk_ns=p[1], tile=tile, flop_efficiency=p[2], byte_efficiency=p[3])

        def predict(p: Floats, flops: Floats = flops, bytes_: Floats = bytes_) -> Floats:
            predicted: Floats = prefill_ns(form(p), facts, chunks, flops, bytes_)
            return predicted

        p = fit(predict, ns, [10_000, 50, 0.5, 0.5])
        miss = float(np.median(np.abs(predict(p) / ns - 1)))
        if best is None or miss < best[0]:
            best = miss, form(p)
    assert best is not None
    return best[1]


def _work(form: PrefillForm, key: AttentionKey, rows: pl.DataFrame) -> tuple[Floats, Floats]:
    """(FLOPs, bytes) of each row."""
    chunks, tokens, context = floats(rows, "chunks", "tokens", "context")
    flops, bytes_ = prefill_work(form, key, tokens, context, np.maximum)
    return chunks * flops, chunks * bytes_


def prefill_curves(frame: pl.DataFrame, holes: pl.DataFrame, form: PrefillForm, facts: Facts, source: str,
                   tolerance: float) -> list[PrefillCurve]:
    """A curve a key; at the places of `holes` the ratio follows the kernels like it."""
    parts = []
    for key, rows in parts_of(frame):
        chunks, ns = floats(rows, "chunks", "ns")
        parts.append(rows.with_columns(ratio=ns / prefill_ns(form, facts, chunks, *_work(form, key, rows))))
    rows = pl.concat(parts)
    if rows["context"].n_unique() > 1:  # one chunk behind a cached prefix: smooth in the prefix, not in the chunk
        full = borrowed(rows, holes, ("chunks", "tokens"), "context")
    else:
        # Blocks of queries (chunks × heads × tokens ÷ tile) run in waves: kernels with as many chunks × heads jump at
        # the same lengths (L40S, fp8: 2.9 % off in the median; 4.2 % where kernels with as many chunks are asked).
        blocks = pl.col("chunks") * pl.col("heads")
        counted = (part.with_columns(blocks=blocks) for part in (rows, holes))
        full = borrowed(*counted, ("blocks", "context"), "tokens")
        full = full.with_columns(chunks=pl.col("blocks") // pl.col("heads"))
        full = borrowed(full, holes, ("chunks", "context"), "tokens")  # where no other kernel has as many
    curves = []
    for key, rows in parts_of(full):
        chunks, tokens, context = floats(rows, "chunks", "tokens", "context")
        seen = causal_pairs(tokens, context, key.window, 1, np.maximum) / tokens
        table = ragged(_lines(rows.with_columns(total=chunks * tokens, seen=seen), "total", "seen"), tolerance)
        curves.append(PrefillCurve(key=key, form=form, table=table, source=source))
    return curves


def _lines(rows: pl.DataFrame, outer: str, inner: str) -> dict[float, tuple[Floats, Floats]]:
    """outer value → (inner values, ratios); ratios at one place are merged into their median."""
    merged = rows.group_by(outer, inner).agg(pl.col("ratio").median()).sort(outer, inner)
    return {float(at): (line[inner].cast(pl.Float64).to_numpy(), line["ratio"].to_numpy())
            for (at,), line in merged.group_by(outer, maintain_order=True)}
