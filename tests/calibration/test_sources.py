"""Importers on small handmade files: units, columns, filters, and what bad input is told."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import polars as pl
import pytest
from kvsim_calibration.sources import aiconfigurator, llmservingsim, vidur

from kvsim.device import load_device
from kvsim.errors import InputError

FACTS = load_device("h100-sxm").facts
DECODE = {"batch_size": 1, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "kv_cache_dtype": "bfloat16",
          "step": 15, "window_size": 0, "kernel_source": "fa3", "latency": 0.011}


def parquet(folder: Path, table: str, rows: list[dict[str, object]], version: str = "0.24.0") -> Path:
    op = {"generation_attention_perf": "attention", "gemm_perf": "gemm", "moe_perf": "moe",
          "context_attention_perf": "attention", "custom_allreduce_perf": "comm"}[table]
    path = folder / "systems" / "data" / "h100_sxm" / op / "vllm" / version / f"{table}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_parquet(path)
    return path


def decode_rows(tmp_path: Path, *changes: dict[str, object]) -> pl.DataFrame:
    parquet(tmp_path, "generation_attention_perf", [{**DECODE, **change} for change in changes])
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    return rows.frame


def test_a_generation_row_attends_one_more_than_its_step(tmp_path: Path) -> None:
    frame = decode_rows(tmp_path, {})
    assert frame.select("n", "length", "attended", "ns", "kv_dtype").row(0) == (1, 16, 16, 11_000.0, "bf16")


def test_rows_from_a_warm_cache_are_left_out_and_counted(tmp_path: Path) -> None:
    per_token = 2 * 8 * 128 * 2
    inside, below, above = (int(share * FACTS.l2_bytes / per_token) for share in (0.5, 0.05, 1.2))
    parquet(tmp_path, "generation_attention_perf", [{**DECODE, "step": step - 1} for step in (inside, below, above)])
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    assert rows.frame["attended"].to_list() == [below, above]
    assert list(rows.dropped.values()) == [1]


def test_a_window_bounds_what_is_attended(tmp_path: Path) -> None:
    frame = decode_rows(tmp_path, *({"window_size": 128, "step": step} for step in (63, 127, 255)))
    assert frame.select("length", "attended").rows() == [(64, 64), (256, 128)]  # as long as the window: not masked yet


def test_repeats_become_their_median(tmp_path: Path) -> None:
    assert decode_rows(tmp_path, *({"latency": ms} for ms in (0.010, 0.011, 0.5)))["ns"].to_list() == [11_000.0]


def test_a_table_without_windows_is_full_attention(tmp_path: Path) -> None:
    parquet(tmp_path, "generation_attention_perf", [{k: v for k, v in DECODE.items() if k != "window_size"}])
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    assert rows.frame["window"].to_list() == [0]


def test_the_newest_version_is_read(tmp_path: Path) -> None:
    parquet(tmp_path, "generation_attention_perf", [{**DECODE, "latency": 9.0}], "0.9.0")
    parquet(tmp_path, "generation_attention_perf", [DECODE], "0.24.0")
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    assert rows.versions == {"vllm": "0.24.0"} and rows.frame["ns"].to_list() == [11_000.0]


def test_a_wheel_reads_like_a_folder(tmp_path: Path) -> None:
    file = parquet(tmp_path, "generation_attention_perf", [DECODE])
    wheel = tmp_path / "aiconfigurator_core-0.12.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, str(file.relative_to(tmp_path)))
    (rows,) = aiconfigurator.read(str(wheel), "h100-sxm", FACTS)
    assert rows.frame.height == 1


def test_gemm_dtypes_are_ours_and_strange_ones_are_counted(tmp_path: Path) -> None:
    row = {"m": 1, "n": 4096, "k": 4096, "kernel_source": "x", "latency": 0.01}
    parquet(tmp_path, "gemm_perf", [{**row, "gemm_dtype": dtype} for dtype in ("bfloat16", "fp8", "fp6")])
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    assert rows.frame["dtype"].to_list() == ["bf16", "fp8"]
    assert rows.dropped == {"format kvsim does not know": 1}


def test_weights_that_stay_in_l2_are_marked_where_some_were_faster_than_memory(tmp_path: Path) -> None:
    def row(share: float, m: int = 1, speed: float = 0.8, dtype: str = "bfloat16") -> dict[str, object]:
        n = int(share * FACTS.l2_bytes / 512 / (2 if dtype == "bfloat16" else 1))
        ms = share * FACTS.l2_bytes / (speed * FACTS.bandwidth) * 1e3
        return {"m": m, "n": n, "k": 512, "kernel_source": "x", "latency": ms, "gemm_dtype": dtype}

    slow = row(0.1, dtype="fp8")  # of its dtype none is faster than memory
    parquet(tmp_path, "gemm_perf", [row(0.06, speed=2), row(0.1), row(0.1, m=4096), row(0.015), row(0.2), slow])
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    marked = rows.frame.filter("warm").sort("n")
    assert marked.select("dtype", "m").rows() == [("bf16", 1)] * 2
    assert marked["n"].to_list() == [row(0.06)["n"], row(0.1)["n"]]
    assert rows.frame.height == 6 and "2 rows of all dtypes, read from a warm L2" in rows.notes


def test_experts_are_those_of_one_device(tmp_path: Path) -> None:
    row = {"moe_dtype": "bfloat16", "num_tokens": 4, "hidden_size": 4096, "inter_size": 14336, "topk": 2,
           "num_experts": 8, "moe_tp_size": 4, "moe_ep_size": 1, "distribution": "power_law_1.01", "latency": 0.1,
           "kernel_source": "x"}
    parquet(tmp_path, "moe_perf", [row, {**row, "moe_ep_size": 2}, {**row, "distribution": "balanced"}])
    (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    assert rows.frame.select("inter", "experts", "m", "ns").rows() == [(14336 // 4, 8, 4, 1e5)]
    assert sum(rows.dropped.values()) == 2


def test_all_reduce_over_pcie_is_between_two_cards(tmp_path: Path) -> None:
    """vLLM turns its kernel off between more; what it then runs is in no table. NVLink has no such limit."""
    rows = [{"num_gpus": gpus, "message_size": 1024, "kernel_source": "vLLM_custom_graph", "latency": 0.01}
            for gpus in (2, 4)]  # fmt: skip
    parquet(tmp_path, "custom_allreduce_perf", rows)
    (nvlink,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)
    assert nvlink.frame["gpus"].to_list() == [2, 4] and nvlink.frame["bytes"].to_list() == [2048, 2048]
    pcie = FACTS.model_copy(update={"link_bandwidth": FACTS.host_bandwidth})
    (two,) = aiconfigurator.read(str(tmp_path), "h100-sxm", pcie)
    assert two.frame["gpus"].to_list() == [2]
    assert two.dropped["more than two cards over PCIe: vLLM turns the kernel off"] == 1


def test_an_all_reduce_of_another_version_can_be_asked_for(tmp_path: Path) -> None:
    row = {"num_gpus": 2, "message_size": 1024, "kernel_source": "vLLM_custom_graph", "latency": 0.01}
    parquet(tmp_path, "custom_allreduce_perf", [row])
    parquet(tmp_path, "custom_allreduce_perf", [{**row, "latency": 0.02}], "0.19.0")
    for asked, version, ns in ((None, "0.24.0", 10_000.0), ("0.19.0", "0.19.0", 20_000.0)):
        (rows,) = aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS, asked)
        assert rows.versions == {"vllm": version} and rows.frame["ns"].to_list() == [ns]
    parquet(tmp_path, "generation_attention_perf", [DECODE])
    with pytest.raises(InputError, match=r"h100_sxm has no all-reduce of vLLM 0\.1"):
        aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS, "0.1")


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_a_folder_without_tables_says_what_it_needs(tmp_path: Path, where: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"h100_sxm|neither a folder"):
        aiconfigurator.read(str(tmp_path / where), "h100-sxm", FACTS)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    parquet(tmp_path, "generation_attention_perf", [{"latency": 1.0, "step": 1}])
    with pytest.raises(InputError, match="lacks the columns batch_size"):
        aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)


def test_a_broken_parquet_is_named(tmp_path: Path) -> None:
    parquet(tmp_path, "generation_attention_perf", [DECODE]).write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="can't be read as parquet"):
        aiconfigurator.read(str(tmp_path), "h100-sxm", FACTS)


def layer_tables(root: Path, model: str = "meta-llama/Llama-3.1-8B", tp: int = 1) -> Path:
    folder = root / "RTX4090" / model / "bf16" / f"tp{tp}"
    folder.mkdir(parents=True)
    (folder.parent / "meta.yaml").write_text("vllm_version: 0.19.0\ncuda_version: '12.8'\n")
    tables = {
        "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,4,16,9.5\n16,32,0,0,12\n16,0,4,64,20\n",
        "dense": "layer,tokens,time_us\nqkv_proj,2,30\nlayernorm,2,3\nrotary_emb,2,4\nact_fn,2,5\nembedding,2,6\n",
        "per_sequence": "layer,sequences,time_us\nlm_head,2,700\nsampler,2,25\n",
    }
    for name, text in tables.items():
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_layer_tables_split_into_families(tmp_path: Path) -> None:
    layer_tables(tmp_path)
    found = {rows.family: rows for rows in llmservingsim.read(str(tmp_path), "rtx-4090")}
    assert {name: rows.frame.height for name, rows in found.items()} == {
        "decode": 1, "prefill": 1, "mixed": 1, "linear": 2, "memory": 5}
    assert found["decode"].versions == {"vllm": "0.19.0", "cuda": "12.8"}
    assert found["decode"].frame.select("heads", "kv_heads", "n", "attended", "ns").row(0) == (32, 8, 4, 16, 9_500)
    assert found["prefill"].frame.select("tokens", "context", "ns").row(0) == (16, 32, 12_000)
    assert sorted(found["linear"].frame.select("n", "k", "m").rows()) == [(6144, 4096, 2), (128256, 4096, 2)]
    bytes_ = dict(found["memory"].frame.select("op", "bytes").rows())
    assert bytes_ == {"norm": 2 * 4096 * 8, "rope": 2 * 40 * 128 * 4, "act": 2 * 14336 * 6, "embed": 2 * 4096 * 4,
                      "sample": 2 * 128256 * 4}


def test_layer_tables_under_tensor_parallelism(tmp_path: Path) -> None:
    layer_tables(tmp_path, tp=2)
    found = {rows.family: rows for rows in llmservingsim.read(str(tmp_path), "rtx-4090")}
    assert found["decode"].frame.select("heads", "kv_heads").row(0) == (16, 4)
    assert "sample" not in set(found["memory"].frame["op"])


def test_experts_follow_uniform_routing(tmp_path: Path) -> None:
    folder = layer_tables(tmp_path, "Qwen/Qwen3-30B-A3B")
    (folder / "moe.csv").write_text("tokens,activated_experts,time_us\n1,8,50\n2,8,60\n2,16,140\n")
    moe = next(rows for rows in llmservingsim.read(str(tmp_path), "rtx-4090") if rows.family == "moe").frame
    whole = moe.filter(pl.col("experts") == 128).sort("m")
    expected = 128 * (1 - (1 - 8 / 128) ** 2)  # 15.5 of 128 experts are active
    assert whole["ns"].to_list() == pytest.approx([50_000, 60_000 + (expected - 8) / 8 * 80_000])
    assert set(moe["experts"]) == {128, 64}


def test_other_models_can_be_left_out(tmp_path: Path) -> None:
    layer_tables(tmp_path)
    with pytest.raises(InputError, match="no tables of qwen3-32b"):
        llmservingsim.read(str(tmp_path), "rtx-4090", "qwen3-32b")


def test_vidur_shapes_and_resolution(tmp_path: Path) -> None:
    layers = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "attn_rope", "mlp_act", "emb",
              "input_layernorm", "add")
    row: dict[str, object] = {f"time_stats.{name}.median": 0.05 for name in layers}
    row |= {"time_stats.attn_rope.median": 0.003, "n_head": 32, "n_kv_head": 8, "n_embd": 4096, "num_tokens": 8,
            "n_expanded_embd": 14336, "num_tensor_parallel_workers": 2}
    pl.DataFrame([row]).write_csv(tmp_path / "vidur_a100_x_mlp.csv")
    linear, memory = vidur.read(str(tmp_path), "a100-80-sxm")
    assert sorted(linear.frame.select("n", "k").rows()) == [(3072, 4096), (4096, 2048), (4096, 7168), (14336, 4096)]
    assert set(linear.frame["ns"]) == {50_000.0}
    assert dict(memory.frame.select("op", "ns").rows())["norm"] == pytest.approx(100_000)
    assert "rope" not in set(memory.frame["op"]) and sum(memory.dropped.values()) == 1
