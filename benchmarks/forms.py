"""Fit the datasheet forms: `python benchmarks/forms.py ../shared/kernel_data/aiconfigurator_core/systems`.

One set of constants per family over all GPUs at once, robust and relative; then each GPU is left out in turn, which is
what a device that nobody measured will see. The constants in kvsim/device/datasheet.py are the first line of each
family, its errors those of the devices left out. Needs scipy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from scipy.optimize import least_squares

from kvsim.device import forms, load_device

GPUS = {"a100_sxm": "a100-80-sxm", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "l40s": "l40s", "b200_sxm": "b200",
        "rtx_pro_6000_server": "rtx-pro-6000"}
Rows = dict[str, Any]


def read(root: Path, gpu: str, family: str, name: str) -> pl.DataFrame:
    newest = sorted(root.glob(f"data/{gpu}/{family}/vllm/*/{name}.parquet"))[-1]
    table = pl.read_parquet(newest)
    if "window_size" in table.columns:
        table = table.filter(pl.col("window_size") == 0)
    if "head_dim" in table.columns:
        table = table.filter(pl.col("head_dim").is_in([64, 128, 256]), pl.col("kv_cache_dtype") == "bfloat16")
    return table


def columns(table: pl.DataFrame, *names: str) -> list[Any]:
    return [table[name].to_numpy().astype(float) for name in names]


def attention_key(heads: Any, kv_heads: Any, head_dim: Any) -> SimpleNamespace:
    return SimpleNamespace(heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim, kernel="flash",
                           window=0, read_bytes_per_token=kv_heads * 4 * head_dim, flops_per_pair=4 * heads * head_dim)


def decode_rows(root: Path, gpu: str) -> Rows:
    table = read(root, gpu, "attention", "generation_attention_perf")
    n, step, heads, kv, dim = columns(table, "batch_size", "step", "num_heads", "num_key_value_heads", "head_dim")
    bytes_ = n * (step + 1) * kv * 4 * dim
    l2 = load_device(GPUS[gpu]).facts.l2_bytes
    keep = (bytes_ < 0.1 * l2) | (bytes_ > l2)  # in between the tables were timed on a warm L2
    return {"n": n[keep], "total": (n * (step + 1))[keep], "key": attention_key(heads[keep], kv[keep], dim[keep]),
            "ns": table["latency"].to_numpy()[keep] * 1e6}


def decode(p: Any, facts: Any, rows: Rows) -> Any:
    form = forms.DecodeForm(fixed_ns=p[0], per_head_ns=p[1], fill=p[2], efficiency=p[3])
    fixed, per_token = forms.decode_coefficients(form, rows["key"], facts, rows["n"], np.maximum)
    return fixed + per_token * rows["total"]


def prefill_rows(root: Path, gpu: str) -> Rows:
    table = read(root, gpu, "attention", "context_attention_perf")
    b, isl, heads, kv, dim = columns(table, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    return {"b": b, "isl": isl, "key": attention_key(heads, kv, dim), "ns": table["latency"].to_numpy() * 1e6}


def prefill(p: Any, facts: Any, rows: Rows) -> Any:
    form = forms.PrefillForm(fixed_ns=p[0], per_chunk_ns=p[1], tile=64, flop_efficiency=p[2], byte_efficiency=p[3])
    flops, bytes_ = forms.prefill_work(form, rows["key"], rows["isl"], 0, np.maximum)
    return forms.prefill_ns(form, facts, rows["b"], rows["b"] * flops, rows["b"] * bytes_)


def linear_rows(dtype: str) -> Callable[[Path, str], Rows]:
    def rows(root: Path, gpu: str) -> Rows:
        table = read(root, gpu, "gemm", "gemm_perf").filter(
            pl.col("gemm_dtype") == dtype, pl.col("n") >= 512, pl.col("k") >= 512, pl.col("m") <= 8192)
        m, n, k = columns(table, "m", "n", "k")
        return {"m": m, "n": n, "k": k, "ns": table["latency"].to_numpy() * 1e6}

    return rows


def linear(compute: str) -> Callable[[Any, Any, Rows], Any]:
    def ns(p: Any, facts: Any, rows: Rows) -> Any:
        form = forms.MatmulForm(fixed_ns=p[0], tile=16, flop_efficiency=p[1], byte_efficiency=p[2])
        width = 2.0 if compute == "bf16" else 1.0
        return forms.matmul_ns(form, facts, rows["n"], rows["k"], rows["m"], width, compute, np.maximum)

    return ns


def moe_rows(root: Path, gpu: str) -> Rows:
    table = read(root, gpu, "moe", "moe_perf").filter(pl.col("moe_dtype") == "bfloat16", pl.col("moe_ep_size") == 1)
    m, hidden, inter, k, experts, tp = columns(table, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
                                               "moe_tp_size")
    return {"m": m, "key": SimpleNamespace(hidden=hidden, inter=inter / tp, experts=experts, top_k=k),
            "ns": table["latency"].to_numpy() * 1e6}


def moe(p: Any, facts: Any, rows: Rows) -> Any:
    form = forms.MatmulForm(fixed_ns=p[0], tile=16, flop_efficiency=p[1], byte_efficiency=p[2])
    return forms.moe_ns(form, facts, rows["key"], rows["m"], 2.0, "bf16", np.maximum)


def reduce_rows(root: Path, gpu: str) -> Rows:
    table = read(root, gpu, "comm", "custom_allreduce_perf")
    table = table.filter(pl.col("backend").str.contains("graph"))
    gpus, elements = columns(table, "num_gpus", "message_size")
    return {"gpus": gpus, "bytes": 2 * elements, "ns": table["latency"].to_numpy() * 1e6}


def reduce(p: Any, facts: Any, rows: Rows) -> Any:
    return forms.collective_ns(forms.CollectiveForm(fixed_ns=p[0], efficiency=p[1]), facts, rows["gpus"], rows["bytes"])


FAMILIES: dict[str, tuple[Callable[[Path, str], Rows], Callable[[Any, Any, Rows], Any], list[float]]] = {
    "decode (fixed, per_head, fill, efficiency)": (decode_rows, decode, [9000, 15, 2, 0.8]),
    "prefill (fixed, per_chunk, flop, byte efficiency)": (prefill_rows, prefill, [10000, 20, 0.5, 0.5]),
    "linear bf16 (fixed, flop, byte efficiency)": (linear_rows("bfloat16"), linear("bf16"), [3000, 0.7, 0.7]),
    "linear fp8": (linear_rows("fp8"), linear("fp8"), [5000, 0.5, 0.7]),
    "moe bf16": (moe_rows, moe, [20000, 0.4, 0.7]),
    "all-reduce (fixed, efficiency)": (reduce_rows, reduce, [6000, 0.6]),
}


def fit(model: Callable[[Any, Any, Rows], Any], start: list[float], data: dict[str, Rows]) -> Any:
    def residual(log_p: Any) -> Any:
        p = np.exp(log_p)
        return np.concatenate([np.log(model(p, load_device(GPUS[gpu]).facts, rows) / rows["ns"])
                               / np.sqrt(len(rows["ns"])) for gpu, rows in data.items()])

    return np.exp(least_squares(residual, np.log(start), loss="soft_l1", f_scale=0.01).x)


def errors(model: Callable[[Any, Any, Rows], Any], p: Any, gpu: str, rows: Rows) -> Any:
    return model(p, load_device(GPUS[gpu]).facts, rows) / rows["ns"] - 1


def summary(error: Any) -> str:
    size = np.abs(error)
    return (f"median {np.median(size):.3f}  p95 {np.quantile(size, 0.95):.3f}  bias {np.median(error):+.3f}  "
            f"rows {len(error)}")


def main() -> None:
    root = Path(sys.argv[1])
    for name, (reader, model, start) in FAMILIES.items():
        data = {gpu: rows for gpu in GPUS if len((rows := reader(root, gpu))["ns"])}
        p = fit(model, start, data)
        print(f"\n{name}: {', '.join(f'{x:.4g}' for x in p)}")
        left_out = []
        for gpu in data:
            others = fit(model, start, {g: rows for g, rows in data.items() if g != gpu})
            left_out.append(errors(model, others, gpu, data[gpu]))
            print(f"  left out {gpu:20s} {summary(left_out[-1])}")
        print(f"  all left out             {summary(np.concatenate(left_out))}")


if __name__ == "__main__":
    main()
