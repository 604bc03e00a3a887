"""LLMServingSim's layer tables: one layer of a real vLLM engine, timed layer by layer. MIT.

Layout (casys-kaist/LLMServingSim, `profiler/perf` at 5daddb2):
`<gpu>/<vendor>/<model>/<variant>/tp<N>/{attention,dense,per_sequence,moe,skew}.csv.gz` and `meta.yaml`; times in µs.
An attention row is a step: one prefill chunk (or none) and n decode sequences of equal length. Layers run between
lm_heads of a gigabyte, so that their caches are cold; nothing is filtered. Each layer's (N, K) comes from the model.

* `sampler` only at TP 1: at TP 2 the profiler had cut the vocabulary
* `qk_norm` has no kernel in kvsim's model: left out
* experts: (tokens, activated experts) → the number that uniform routing activates; also for half of the experts (expert
  parallelism of two with two replicas), which the same rows describe
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from kvsim.errors import InputError
from kvsim.model import ModelSpec, load_model
from kvsim_calibration.rows import Rows

LICENCE = "MIT"
GPUS = {"rtx-4090": "RTX4090", "rtx-pro-6000": "RTXPRO6000"}
"""device id → folder"""
LAYERS = {"qkv_proj": "qkv", "o_proj": "o", "gate_up_proj": "gate_up", "down_proj": "down", "lm_head": "lm_head"}
"""linear layer in the tables → in a ModelSpec"""
COLUMNS = {
    "attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"), "dense": (
        "layer", "tokens", "time_us"), "per_sequence": ("layer", "sequences", "time_us"), "moe": (
        "tokens", "activated_experts", "time_us"), "skew": (
        "n", "pc", "kp", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"),
}


def read(where: str, system: str, model: str | None = None) -> list[Rows]:
    """All families, merged over the models and TP degrees found; `model` keeps one. Raises InputError."""
    folder = _gpu_folder(Path(where), GPUS.get(system, system))
    found: dict[str, list[pl.DataFrame]] = {}
    versions: dict[str, str] = {}
    for path in sorted(folder.glob("*/*/*/tp*")):
        spec = load_model("/".join(path.parts[-4:-2]))
        if model and spec.name != load_model(model).name:
            continue
        versions |= _versions(path.parent / "meta.yaml")
        for family, frame in _tables(path, spec, int(path.name[2:])):
            found.setdefault(family, []).append(frame)
    if not found:
        raise InputError(f"{folder} holds no tables{f' of {model}' if model else ''}: it needs "
                         "<vendor>/<model>/<variant>/tp<N>/attention.csv.gz")
    source = f"LLMServingSim profiler/perf at 5daddb2, {folder.name}"
    return [Rows(family, pl.concat(frames, how="diagonal"), source, LICENCE, ("vLLM's own",), versions).distinct()
            for family, frames in found.items()]


def _gpu_folder(path: Path, gpu: str) -> Path:
    for folder in (path, path / gpu, *sorted(path.rglob(gpu))):
        if folder.name == gpu and folder.is_dir():
            return folder
    raise InputError(f"{path} has no folder {gpu}")


def _versions(meta: Path) -> dict[str, str]:
    text = meta.read_text(encoding="utf-8") if meta.is_file() else ""
    found = dict(re.findall(r"^(vllm|cuda)_version: '?([\w.+]+)'?", text, re.MULTILINE))
    return {name: str(version) for name, version in found.items()}


def _read(path: Path, table: str) -> pl.DataFrame | None:
    for file in (path / f"{table}.csv.gz", path / f"{table}.csv"):
        if file.is_file():
            try:
                frame = pl.read_csv(file)
            except (OSError, pl.exceptions.PolarsError) as error:
                raise InputError(f"{file} can't be read as CSV: {error}") from None
            if missing := sorted(set(COLUMNS[table]) - set(frame.columns)):
                raise InputError(f"{file} lacks the columns {', '.join(missing)}")
            return frame
    return None


def _tables(path: Path, model: ModelSpec, tp: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """(family, rows) of one folder."""
    group = model.attention_groups[0]
    key = [pl.lit(value).alias(name) for name, value in (
        ("heads", group.heads_per_gpu(tp)), ("kv_heads", group.kv_heads_per_gpu(tp)), ("head_dim", group.head_dim),
        ("kv_dtype", "bf16"), ("window", 0), ("block_size", 16))]
    if (attention := _read(path, "attention")) is not None:
        yield from _attention(attention.with_columns(*key, ns=pl.col("time_us") * 1e3))
    if (skew := _read(path, "skew")) is not None:
        yield "skew", skew.with_columns(
            *key, tokens="pc", context="kp", mean=pl.col("kv_mean").cast(pl.Int64), longest="kv_big",
            ns=pl.col("t_skew_us") * 1e3, ns_mean=pl.col("t_mean_us") * 1e3, ns_longest=pl.col("t_max_us") * 1e3)
    ops = {op.name: op for op in model.linear_ops(tp, 1)}
    for table, rows in (("dense", "tokens"), ("per_sequence", "sequences")):
        if (frame := _read(path, table)) is not None:
            frame = frame.with_columns(m=rows, ns=pl.col("time_us") * 1e3)
            for name, op in LAYERS.items():
                layer = frame.filter(pl.col("layer") == name)
                if layer.height and op in ops:
                    yield "linear", layer.select("m", "ns", dtype=pl.lit("bf16"), n=pl.lit(ops[op].n),
                                                 k=pl.lit(ops[op].k))
            yield from _memory(frame, model, tp, ops["down"].k if "down" in ops else 0)
    if model.moe and (moe := _read(path, "moe")) is not None:
        yield from _experts(moe, model, tp)


def _attention(frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    chunk, n = pl.col("prefill_chunk"), pl.col("n_decode")
    frame = frame.with_columns(tokens=chunk, context="kv_prefill", n=n, length="kv_decode", attended="kv_decode",
                               chunks=pl.lit(1))
    yield "decode", frame.filter(chunk == 0, n > 0)
    yield "prefill", frame.filter(chunk > 0, n == 0)
    yield "mixed", frame.filter(chunk > 0, n > 0)


def _memory(frame: pl.DataFrame, model: ModelSpec, tp: int, inter: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Rows of kernels that move bytes; `kvsim.device.curves.MemoryOp` says which bytes count."""
    group = model.attention_groups[0]
    turned = (group.heads_per_gpu(tp) + group.kv_heads_per_gpu(tp)) * group.head_dim
    per_token = {"layernorm": ("norm", 8 * model.hidden), "rotary_emb": ("rope", 4 * turned), "act_fn": (
        "act", 6 * inter), "embedding": ("embed", 4 * model.hidden)}
    if tp == 1:
        per_token["sampler"] = ("sample", 4 * model.vocab)
    for layer, (op, bytes_) in per_token.items():
        rows = frame.filter(pl.col("layer") == layer)
        if rows.height and bytes_:
            yield "memory", rows.select("ns", op=pl.lit(op), dtype=pl.lit("bf16"), bytes=pl.col("m") * bytes_)


def _experts(frame: pl.DataFrame, model: ModelSpec, tp: int) -> Iterator[tuple[str, pl.DataFrame]]:
    moe = model.moe
    assert moe is not None
    inter = next(op.k for op in model.linear_ops(tp, 1) if op.name == "expert_down")
    for held in (moe.experts, moe.experts // 2):
        rows = []
        for (tokens,), group in frame.sort("tokens", "activated_experts").group_by("tokens", maintain_order=True):
            activated = held * (1 - (1 - moe.top_k / held) ** int(str(tokens)))
            rows.append((tokens, float(np.interp(activated, group["activated_experts"], group["time_us"])) * 1e3))
        yield "moe", pl.DataFrame(rows, schema={"m": pl.Int64, "ns": pl.Float64}, orient="row").with_columns(
            hidden=pl.lit(model.hidden), inter=pl.lit(inter), experts=pl.lit(held), top_k=pl.lit(moe.top_k),
            dtype=pl.lit("bf16"))
