"""NVRTC without a GPU: cubins, their cache, and each chip's limits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from kvsim_kernels import build, sass, store
from kvsim_kernels.__main__ import main
from kvsim_kernels.commands.resources import rows
from kvsim_kernels.decode import kernels, merge, plan
from kvsim_kernels.grid import Case
from torch import bfloat16

MERGE = merge(bfloat16, 64)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("KVSIM_KERNELS_CACHE", str(tmp_path))
    build.cubin.cache_clear()
    yield tmp_path
    build.cubin.cache_clear()


def cubin() -> build.Cubin:
    build.cubin.cache_clear()                   # as a new process would
    return build.cubin(MERGE.source, MERGE.expression, "sm_90")


def test_a_cubin_says_what_it_uses(empty_cache: Path) -> None:
    made = cubin()
    assert made.code[:4] == b"\x7fELF" and made.symbol.encode() in made.code
    assert 0 < made.registers < 64
    assert (made.static_shared_bytes, made.spill_bytes, made.stack_bytes) == (0, 0, 0)
    shared = build.cubin("decode_cuda_cores.cu", "decode_cuda_cores<bf16_t, 64, 1>", "sm_90")
    assert shared.static_shared_bytes == 4 * (1 + 1 + 64) * 4       # tops, weights, outs of four warps


def test_a_cubin_is_compiled_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cubin()
    monkeypatch.setattr(build, "compiled", lambda *asked: pytest.fail("compiled again"))
    assert cubin() == made
    assert [file.suffix for file in empty_cache.iterdir()] == [".cubin"]


@pytest.mark.parametrize("damage", ["torn", "empty", "changed"])
def test_a_damaged_entry_is_built_again(empty_cache: Path, damage: str) -> None:
    made = cubin()
    (file,) = empty_cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes({"torn": whole[:-5], "empty": b"", "changed": whole[:40] + b"?" + whole[41:]}[damage])
    assert cubin() == made
    assert file.read_bytes() == whole


def test_every_input_is_in_the_key(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cubin()
    build.cubin(MERGE.source, MERGE.expression, "sm_80")
    build.cubin(MERGE.source, "decode_merge<half_t, 64>", "sm_90")
    monkeypatch.setattr(build, "nvrtc_version", lambda: (99, 0))
    cubin()
    monkeypatch.setattr(build, "sources", lambda source: "other text of a header")
    cubin()
    assert len(list(empty_cache.iterdir())) == 5
    assert store.key("a", "bc") != store.key("ab", "c")


def test_the_headers_are_among_the_sources() -> None:
    text = build.sources("decode_tensor_cores.cu")
    assert {"decode_tensor_cores.cu", "cache_format.cuh", "softmax.cuh", "device.cuh"} <= set(text.split("\0")[::2])


def test_two_processes_at_once(empty_cache: Path) -> None:
    script = (
        "from kvsim_kernels import build\n"
        f"made = build.cubin({MERGE.source!r}, {MERGE.expression!r}, 'sm_90')\n"
        "print(len(made.code), made.registers)"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert len(list(empty_cache.iterdir())) == 1            # and no temporary files


def test_a_failed_build_leaves_nothing(empty_cache: Path) -> None:
    with pytest.raises(RuntimeError, match=r"decode_merge<nothing, 64> does not compile for sm_90"):
        build.cubin(MERGE.source, "decode_merge<nothing, 64>", "sm_90")
    assert list(empty_cache.iterdir()) == []


def test_a_cuda_core_of_other_names_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.5 all of it was cuda.core.experimental."""
    monkeypatch.setitem(sys.modules, "cuda.core", ModuleType("cuda.core"))
    build.nvrtc_version.cache_clear()
    with pytest.raises(ImportError, match=r"kernels need NVRTC to compile \(cannot import name 'Program'.*pip install"):
        build.nvrtc_version()


def test_what_ptxas_says_is_read() -> None:
    log = """
ptxas info    : Function properties for other
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 99 registers, used 1 barriers, 64 bytes smem
ptxas info    : Function properties for mine
ptxas         .     16 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1056 bytes smem, 380 bytes cmem[0]
"""
    want = {"symbol": "mine", "registers": 40, "static_shared_bytes": 1056, "spill_bytes": 44, "stack_bytes": 16}
    assert build.used(log, "mine") == want
    with pytest.raises(RuntimeError, match="ptxas says nothing of absent"):
        build.used(log, "absent")


def test_the_usual_kernels_fit_every_chip() -> None:
    usual = [
        plan(bfloat16, "bf16", 128, 4, 0, "tensor-cores").kernel,
        plan(bfloat16, "int4", 64, 8, 32, "tensor-cores").kernel,
        plan(bfloat16, "fp8", 128, 8, 0, "tensor-cores").kernel,
        MERGE,
    ]
    assert [row for row in rows(usual, build.ARCHS) if not row["ok"]] == []


def test_every_kernel_leaves_room_in_shared_memory_on_the_smallest_chip() -> None:
    assert [kernel for kernel in kernels() if kernel.shared_bytes + 1024 > build.SHARED_KIB["sm_86"] << 10] == []


def test_resources_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resources", "--arch", "sm_80,sm_120", "--kernel", "decode_merge<bf16_t, 64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] == 0 and [row["arch"] for row in answer["rows"]] == ["sm_80", "sm_120"]
    row = answer["rows"][1]
    assert {"kernel", "arch", "registers", "shared_bytes", "shared_limit", "spill_bytes", "stack_bytes"} <= set(row)
    assert row["shared_limit"] == 99 * 1024
    assert main(["resources", "--arch", "sm_70"]) == 2
    assert "sm_70: not one of sm_80" in capsys.readouterr().err


def test_instructions_of_the_decode_loop(capsys: pytest.CaptureFixture[str]) -> None:
    """nvdisasm showed loops of 329 instructions on sm_80 and 335 on sm_90 for the first version of this kernel."""
    assert main(["instructions", "--arch", "sm_80,sm_90", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["cache"] for row in rows[::2]] == ["bf16", "int8", "fp8", "int4, groups of 32", "int4, groups of 128"]
    assert all(10 < row[arch] < 100 for row in rows for arch in ("sm_80", "sm_90"))
    assert all(eight["sm_90"] < sixteen["sm_90"] for eight, sixteen in zip(rows[::2], rows[1::2], strict=True))


def test_a_branch_goes_where_nvdisasm_says() -> None:
    """Two branches of cubins and their targets, in bytes, as nvdisasm 13.5 gives them."""
    assert sass.target(16240 // 16, (-5248 // 4 & (1 << 48) - 1) << 34 | 0x947, "sm_80") == 11008 // 16
    low, high = -5360 // 4 & 0xFF, -5360 // 4 >> 8 & (1 << 48) - 1
    assert sass.target(16720 // 16, high << 34 | low << 16 | 0x947, "sm_90") == 11376 // 16


def test_resources_fail_where_a_kernel_asks_too_much(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvsim_kernels.grid.variants", lambda: [replace(MERGE, shared_bytes=100 << 10)])
    assert main(["resources", "--arch", "sm_90"]) == 0
    assert main(["resources", "--arch", "sm_90,sm_89"]) == 1
    assert "FAILED" in capsys.readouterr().err


def test_check_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "cpu", "--kernel", "decode tensor-cores fp8_tensor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] == 0 and answer["cases"] == len(answer["rows"]) > 0
    assert all(row["error"] <= row["bound"] for row in answer["rows"])


def test_a_case_that_raises_is_a_row_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> float:
        raise RuntimeError("does not\ncompile")

    cases = [Case("k", "broken", 0.0, broken), Case("k", "good", 0.0, lambda: 0.0)]
    monkeypatch.setattr("kvsim_kernels.grid.cases", lambda device, wide: cases)
    assert main(["check", "--device", "cpu", "--json"]) == 1
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [(row["case"], row["error"], row["bound"], row["ok"]) for row in rows] == [
        ("broken", None, 0.0, False), ("good", 0.0, 0.0, True),
    ]  # fmt: skip
    assert rows[0]["failed"] == "RuntimeError: does not compile" and rows[0]["failed"] in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--device", "toaster"], "error: --device toaster: cpu or cuda[:n] is needed\n"),
        (["--device", "mps"], "error: --device mps: cpu or cuda[:n] is needed\n"),
        (["--device", "cpu", "--kernel", "ceilings", "--out", "/"], "error: [Errno 21] Is a directory: '/'\n"),
    ],
)
def test_bad_options_of_check_are_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words]) == 2
    assert capsys.readouterr().err == says


def test_a_check_goes_on_where_it_was_cut_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", "--device", "cpu", "--kernel", "ceilings", "--json", "--out", str(tmp_path / "check.jsonl")]
    assert main([*command, "--minutes", "-1"]) == 1             # nothing was checked
    assert json.loads(capsys.readouterr().out)["cases"] == 0
    assert main(command) == 0
    first = capsys.readouterr()
    assert main(command) == 0
    again = capsys.readouterr()
    assert json.loads(first.out)["rows"][0].items() <= json.loads(again.out)["rows"][0].items()
    assert len(first.err.splitlines()) == 3 and len(again.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_kernel_fits_every_chip() -> None:
    assert main(["resources"]) == 0
