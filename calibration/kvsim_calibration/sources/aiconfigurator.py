"""NVIDIA's aiconfigurator: kernels as vLLM runs them, timed in CUDA-graph replays. Apache-2.0.

Layout (package aiconfigurator-core, here 0.12.0): `systems/data/<system>/<op>/vllm/<version>/<table>.parquet`;
`latency` is in ms, heads are per GPU, a generation row attends step + 1 tokens. `kernel_source` is whatever vLLM chose
on that GPU, one a point, so there is nothing to choose. What is left out, and why:

* other frameworks' tables (TensorRT-LLM, SGLang): the engine profiles are vLLM's first
* `mla_*_module` tables: whole modules with their projections, not attention
* generation rows whose KV takes 0.1 to 1 × L2: replays read the same buffers, so L2 was warm and the times are
  1.3 to 3.3 × too good; a serving engine reads each layer's KV once a step
* generation rows exactly as long as their window: the mask costs 1.4 to 1.9 × from the next token on
* context rows of one token: they ran the decode kernel
* experts under expert parallelism (`moe_ep_size` > 1): the tokens a rank really got are not in the table
* all-reduce outside CUDA graphs (`vLLM_custom_eager`): launch time, not the reduction
* all-reduce of more than two cards that only PCIe joins: vLLM turns this kernel off there (custom_all_reduce.py), whose
  cards read each other's whole buffers; what runs instead, NCCL's ring, is in no table

What is marked `warm` instead: linear rows whose weights take 0.02 to 1/6 × L2, where reading them takes the time, of
cards on which some of these were faster than memory can be (L40S up to 2.9 ×, RTX PRO 6000 1.9 ×; from 1/6 on none is:
six sets of buffers take turns). An engine reads each layer's weights from memory, once a step.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import polars as pl

from kvsim.device import Facts
from kvsim.device.dtypes import compute_dtype, element_bytes
from kvsim.errors import InputError
from kvsim.precision import FORMATS
from kvsim_calibration.rows import KEY, Rows

LICENCE = "Apache-2.0"
PACKAGE = "aiconfigurator_core"
SYSTEMS = {"a100-80-sxm": "a100_sxm", "b200": "b200_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm",
           "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server"}
"""device id → the package's folder"""
DTYPES = {"bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
          "int4_wo": "int4", "int8_wo": "int8", "w4a16_mxfp4": "mxfp4"}
ALL_REDUCE = "custom_allreduce_perf"
L2_WARM = (0.1, 1.0)
"""share of L2 between which a generation row's KV was read from a warm L2"""
L2_WARM_WEIGHTS = (0.02, 1 / 6)
"""the same of a linear row's weights; below, a launch takes longer than reading them"""


class Files:
    """The parquet files of one system: from a folder, a wheel, or the installed package."""

    def __init__(self, where: str, system: str, versions: Mapping[str, str] | None = None) -> None:
        """`where`: a folder that holds `data/<system>`, at any depth; a .whl; or `installed`. `versions`: table → the
        vLLM version to take, where it is not the newest. Raises InputError."""
        self.folder = SYSTEMS.get(system, system)
        if where == "installed":
            spec = find_spec(PACKAGE) or find_spec("aiconfigurator")
            if spec is None or not spec.submodule_search_locations:
                raise InputError(f"the package {PACKAGE} is not installed: install it, or name a folder or a wheel")
            where = next(iter(spec.submodule_search_locations))
        path = Path(where)
        pattern = re.compile(rf"(?:^|/)data/{re.escape(self.folder)}/(\w+)/vllm/([^/]+)/(\w+)\.parquet$")
        self._wheel = zipfile.ZipFile(path) if path.suffix == ".whl" and path.is_file() else None
        if self._wheel is None and not path.is_dir():
            raise InputError(f"{where} is neither a folder nor a wheel of {PACKAGE}")
        names = self._wheel.namelist() if self._wheel else [p.as_posix() for p in sorted(path.rglob("*.parquet"))]
        self.tables: dict[str, tuple[str, str]] = {}
        """table → (version, name of its newest file)"""
        for name in names:
            if match := pattern.search(name):
                _, version, table = match.groups()
                if (versions or {}).get(table, version) != version:
                    continue
                if table not in self.tables or _version(version) > _version(self.tables[table][0]):
                    self.tables[table] = (version, name)
        if not self.tables:
            raise InputError(f"{where} holds no vLLM tables of {self.folder}: it needs "
                             f"data/{self.folder}/<op>/vllm/<version>/*.parquet")

    def read(self, table: str, columns: tuple[str, ...]) -> tuple[pl.DataFrame, str] | None:
        """(rows, vLLM version) of a table's newest file; None where the system lacks it. Raises InputError."""
        if table not in self.tables:
            return None
        version, name = self.tables[table]
        try:
            frame = pl.read_parquet(BytesIO(self._wheel.read(name)) if self._wheel else name)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{name} can't be read as parquet: {error}") from None
        if missing := sorted(set(columns) - set(frame.columns)):
            raise InputError(f"{name} lacks the columns {', '.join(missing)}")
        return frame.with_columns(ns=pl.col("latency") * 1e6), version


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def read(where: str, system: str, facts: Facts, all_reduce: str | None = None) -> list[Rows]:
    """All families that the system's tables hold; `all_reduce`: of this vLLM version. Raises InputError."""
    files = Files(where, system, {ALL_REDUCE: all_reduce} if all_reduce else None)
    if all_reduce and ALL_REDUCE not in files.tables:
        raise InputError(f"--all-reduce: {files.folder} has no all-reduce of vLLM {all_reduce}")
    families = (_decode, _prefill, _linear, _moe, _collective)
    return [_marked(rows.distinct(), facts) for make in families for rows in make(files, facts)]


def _decode(files: Files, facts: Facts) -> Iterator[Rows]:
    read = files.read("generation_attention_perf", ("batch_size", "num_heads", "num_key_value_heads", "head_dim",
                                                    "kv_cache_dtype", "step", "kernel_source"))
    if read:
        frame = _attention(read[0], n="batch_size").with_columns(length=pl.col("step") + 1)
        frame = frame.with_columns(attended=_seen(pl.col("length")))
        rows = _rows("decode", files, frame, read).drop(
            "as long as the window: not masked yet", (pl.col("window") > 0) & (pl.col("length") == pl.col("window")))
        bytes_ = pl.col("n") * pl.col("attended") * pl.col("kv_heads") * pl.col("head_dim") * 2 * _width("kv_dtype")
        share = bytes_ / facts.l2_bytes
        yield rows.drop("KV of 0.1 to 1 × L2: read from a warm L2", (share >= L2_WARM[0]) & (share <= L2_WARM[1]))


def _prefill(files: Files, _: Facts) -> Iterator[Rows]:
    read = files.read("context_attention_perf", ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim",
                                                 "kv_cache_dtype", "step", "kernel_source"))
    if read:
        frame = _attention(read[0], chunks="batch_size", tokens="isl", context="step")
        yield _rows("prefill", files, frame, read).drop(
            "chunks of one token: decode", pl.col("isl") == 1)


def _linear(files: Files, facts: Facts) -> Iterator[Rows]:
    if read := files.read("gemm_perf", ("gemm_dtype", "m", "n", "k", "kernel_source")):
        frame = read[0].with_columns(dtype=_dtype("gemm_dtype"))
        yield _rows("linear", files, frame, read).drop("format kvsim does not know", pl.col("dtype").is_null()).drop(
            "N or K below 512: too small to weigh", (pl.col("n") < 512) | (pl.col("k") < 512))


def _marked(rows: Rows, facts: Facts) -> Rows:
    """Linear rows with `warm`, others as they are."""
    if rows.family == "linear":
        rows.frame = rows.frame.with_columns(warm=_warm_weights(facts))
        if warm := int(rows.frame["warm"].sum()):
            rows.notes = f"{warm:,} rows of all dtypes, read from a warm L2, count as no faster than memory"
    return rows


def _warm_weights(facts: Facts) -> pl.Expr:
    """Whether a linear row's weights are of a size that stays in L2, where reading them is what takes the time; never
    for a dtype of which no such row is faster than memory."""
    bytes_ = pl.col("n") * pl.col("k") * pl.col("dtype").replace_strict(
        {name: element_bytes(name) for name in DTYPES.values()}, return_dtype=pl.Float64)
    from_memory = bytes_ * 1e9 / facts.bandwidth
    computing = 2e9 * pl.col("n") * pl.col("k") * pl.col("m") / pl.col("dtype").replace_strict(
        {name: facts.peak_flops(compute_dtype(name)) for name in DTYPES.values()}, return_dtype=pl.Float64)
    low, high = L2_WARM_WEIGHTS
    stays = (bytes_ >= low * facts.l2_bytes) & (bytes_ <= high * facts.l2_bytes)
    reads = stays & (computing < from_memory)
    return reads & (reads & (pl.col("ns") < from_memory)).any().over("dtype")


def _moe(files: Files, _: Facts) -> Iterator[Rows]:
    read = files.read("moe_perf", ("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
                                   "moe_tp_size", "moe_ep_size", "distribution", "kernel_source"))
    if read:
        frame = read[0].with_columns(
            dtype=_dtype("moe_dtype"), m=pl.col("num_tokens"), hidden=pl.col("hidden_size"), top_k=pl.col("topk"),
            inter=pl.col("inter_size") // pl.col("moe_tp_size"), experts=pl.col("num_experts"))
        yield (_rows("moe", files, frame, read, "tokens are spread over experts by a power law of exponent 1.01")
               .drop("format kvsim does not know", pl.col("dtype").is_null())
               .drop("expert parallelism", pl.col("moe_ep_size") != 1)
               .drop("other spread of tokens over experts", pl.col("distribution") != "power_law_1.01"))


def _collective(files: Files, facts: Facts) -> Iterator[Rows]:
    if read := files.read(ALL_REDUCE, ("num_gpus", "message_size", "kernel_source")):
        frame = read[0].with_columns(gpus=pl.col("num_gpus"), bytes=pl.col("message_size") * 2)
        only_pcie = facts.link_bandwidth <= facts.host_bandwidth
        yield _rows("collective", files, frame, read).drop(
            "outside CUDA graphs", ~pl.col("kernel_source").str.contains("graph")).drop(
            "more than two cards over PCIe: vLLM turns the kernel off", (pl.col("gpus") > 2) & only_pcie)


def _attention(frame: pl.DataFrame, **renamed: str) -> pl.DataFrame:
    window = pl.col("window_size") if "window_size" in frame.columns else pl.lit(0, pl.Int64)
    return frame.with_columns(
        heads=pl.col("num_heads"), kv_heads=pl.col("num_key_value_heads"), window=window, kv_dtype=_dtype(
            "kv_cache_dtype"), block_size=pl.lit(0, pl.Int64), **{new: pl.col(old) for new, old in renamed.items()})


def _seen(tokens: pl.Expr) -> pl.Expr:
    """of `tokens`, those inside the window"""
    return pl.when(pl.col("window") > 0).then(pl.min_horizontal(tokens, "window")).otherwise(tokens)


def _dtype(column: str) -> pl.Expr:
    return pl.col(column).replace_strict(DTYPES, default=None, return_dtype=pl.String)


def _width(column: str) -> pl.Expr:
    return pl.col(column).replace_strict({name: f.bits / 8 for name, f in FORMATS.items()}, return_dtype=pl.Float64)


def _rows(family: str, files: Files, frame: pl.DataFrame, read: tuple[pl.DataFrame, str], notes: str = "") -> Rows:
    table = {"decode": "generation_attention_perf", "prefill": "context_attention_perf", "linear": "gemm_perf",
             "moe": "moe_perf", "collective": ALL_REDUCE}[family]
    version = read[1]
    kernels = tuple(sorted(frame["kernel_source"].unique()))
    return Rows(family, frame, f"{PACKAGE.replace('_', '-')}, {files.folder}/{table}", LICENCE, kernels,
                {"vllm": version}, notes=notes)


__all__ = ["KEY", "SYSTEMS", "Files", "read"]
