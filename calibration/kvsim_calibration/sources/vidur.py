"""Vidur's profiling tables: dense layers of vLLM models on A100 and H100, CUDA-event times. MIT.

Layout (microsoft/vidur, `data/profiling` at 7d47513): CSVs, here named `vidur_<gpu>_<model>_mlp.csv[.gz]`, one row a
number of tokens and TP degree, `time_stats.<layer>.median` in ms with a resolution of 1 µs. Rows under 10 µs are left
out: a microsecond more or less is a tenth of them. `norm` is the layer norm and the residual add, two kernels here that
vLLM has fused since."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kvsim.errors import InputError
from kvsim_calibration.rows import Rows

LICENCE = "MIT"
GPUS = {"a100-80-sxm": "a100", "h100-sxm": "h100"}
SHORTEST_NS = 10_000
SHAPE = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")


def read(where: str, system: str) -> list[Rows]:
    """Linear layers and elementwise kernels. Raises InputError."""
    gpu = GPUS.get(system, system)
    files = sorted(Path(where).rglob(f"*{gpu}*_mlp.csv*")) or sorted(Path(where).rglob(f"{gpu}/*/mlp.csv*"))
    if not files:
        raise InputError(f"{where} has no table of {gpu}: it needs *{gpu}*_mlp.csv or {gpu}/<model>/mlp.csv")
    frames = [_table(file) for file in files]
    source = f"Vidur data/profiling at 7d47513, {gpu}"
    found = []
    for family, made in (("linear", _linear), ("memory", _memory)):
        frame = pl.concat([made(table) for table in frames])
        rows = Rows(family, frame, source, LICENCE, ("torch and vLLM of early 2024",))
        found.append(rows.drop("under 10 µs at a resolution of 1 µs", pl.col("ns") < SHORTEST_NS).distinct())
    return found


def _table(file: Path) -> pl.DataFrame:
    try:
        frame = pl.read_csv(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{file} can't be read as CSV: {error}") from None
    if missing := sorted(set(SHAPE) - set(frame.columns)):
        raise InputError(f"{file} lacks the columns {', '.join(missing)}")
    times = {f"time_stats.{name}.median": name for name in (
        "attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "attn_rope", "mlp_act", "emb",
        "input_layernorm", "add")}
    if missing := sorted(set(times) - set(frame.columns)):
        raise InputError(f"{file} lacks the columns {', '.join(missing)}")
    return frame.select(*SHAPE, *(pl.col(old).alias(new) * 1e6 for old, new in times.items())).rename(
        {"num_tokens": "m", "num_tensor_parallel_workers": "tp", "n_embd": "hidden", "n_expanded_embd": "inter"})


def _linear(table: pl.DataFrame) -> pl.DataFrame:
    hidden, tp, inter = pl.col("hidden"), pl.col("tp"), pl.col("inter")
    kv = pl.max_horizontal(pl.col("n_kv_head") // tp, pl.lit(1))
    head = hidden // pl.col("n_head")
    shapes = {"attn_pre_proj": (hidden // tp + 2 * kv * head, hidden), "attn_post_proj": (hidden, hidden // tp),
              "mlp_up_proj": (2 * inter // tp, hidden), "mlp_down_proj": (hidden, inter // tp)}
    return pl.concat([table.select("m", dtype=pl.lit("bf16"), n=n, k=k, ns=name) for name, (n, k) in shapes.items()])


def _memory(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of kernels that move bytes; `kvsim.device.curves.MemoryOp` says which bytes count."""
    hidden, tp = pl.col("hidden"), pl.col("tp")
    turned = (pl.col("n_head") + pl.col("n_kv_head")) // tp * (hidden // pl.col("n_head"))
    ops = {"norm": (pl.col("input_layernorm") + pl.col("add"), 8 * hidden), "rope": (pl.col("attn_rope"), 4 * turned),
           "act": (pl.col("mlp_act"), 6 * (pl.col("inter") // tp)), "embed": (pl.col("emb"), 4 * hidden)}
    return pl.concat([table.select(op=pl.lit(op), dtype=pl.lit("bf16"), bytes=pl.col("m") * bytes_, ns=ns)
                      for op, (ns, bytes_) in ops.items()])
