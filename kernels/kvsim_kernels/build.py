"""CUDA C++ to cubin by NVRTC through cuda.core: at run time, without nvcc, CUDA headers, a driver or a GPU."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from . import store

CSRC = Path(__file__).parent / "csrc"
# KiB of shared memory one block may have (CUDA C++ Programming Guide, technical specifications).
SHARED_KIB = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_120": 99}
ARCHS = tuple(SHARED_KIB)


def chips(names: str) -> list[str]:
    """The chips of a comma-separated list; ValueError for one that is not known."""
    archs = names.split(",")
    for arch in archs:
        if arch not in ARCHS:
            raise ValueError(f"--arch {arch}: not one of {', '.join(ARCHS)}")
    return archs


@dataclass(frozen=True)
class Cubin:
    """Machine code of one kernel for one chip, and what ptxas said of it."""

    code: bytes
    symbol: str
    registers: int
    static_shared_bytes: int
    spill_bytes: int
    stack_bytes: int


@cache
def sources(source: str) -> str:
    """The text of `csrc/<source>` and of every file it includes: what a build depends on."""
    seen: dict[Path, str] = {}

    def add(path: Path) -> None:
        if path not in seen:
            seen[path] = path.read_text()
            for name in re.findall(r'^#include "(.+?)"', seen[path], re.MULTILINE):
                add((path.parent / name).resolve())

    add((CSRC / source).resolve())
    return "\0".join(f"{path.name}\0{text}" for path, text in seen.items())


@cache
def nvrtc_version() -> tuple[int, int]:
    """Version of the NVRTC that is installed; ImportError with a remedy if there is none."""
    try:
        from cuda.bindings import nvrtc  # type: ignore[import-untyped]
        from cuda.core import Program  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise ImportError(f"kernels need NVRTC to compile ({error}): pip install 'kvsim[calibrate]'") from error
    status, major, minor = nvrtc.nvrtcVersion()
    if int(status):
        raise RuntimeError(f"nvrtcVersion failed with {status}")
    return major, minor


def options(arch: str) -> dict[str, object]:
    return {"arch": arch, "std": "c++17", "ptxas_options": ["-v"]}


@cache
def cubin(source: str, expression: str, arch: str) -> Cubin:
    """The kernel `expression` (a template instantiation, as C++ writes it) of `csrc/<source>`, compiled for `arch`.

    Compiled once, then read from disk; raises RuntimeError with the compiler's messages if it does not compile.
    """
    asked = options(arch)
    name = store.key(sources(source), expression, json.dumps([asked, nvrtc_version()])) + ".cubin"
    data = store.read(store.fetch(name, lambda: compiled(source, expression, asked)))
    assert data is not None, f"{name} changed while it was read"
    head, code = data.split(b"\n", 1)
    return Cubin(code=code, **json.loads(head))


def compiled(source: str, expression: str, asked: dict[str, object]) -> bytes:
    """A line of JSON (the fields of Cubin but `code`), then the cubin."""
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    path = CSRC / source
    try:
        program = Program(path.read_text(), "c++", ProgramOptions(name=source, include_path=[str(CSRC)], **asked))
        made = program.compile("cubin", name_expressions=(expression,), logs=log)
    except Exception as error:
        what = f"{source}: {expression} does not compile for {asked['arch']}"
        raise RuntimeError(f"{what}: {error}\n{log.getvalue()}") from error
    symbol = made.symbol_mapping[expression]
    usage = used(log.getvalue(), symbol if isinstance(symbol, str) else symbol.decode())
    return json.dumps(usage).encode() + b"\n" + bytes(made.code)


def used(log: str, symbol: str) -> dict[str, object]:
    """Registers, static shared memory, spills and stack of `symbol` from the lines of `ptxas -v`."""
    _, _, mine = log.partition(f"Function properties for {symbol}\n")
    mine = mine.partition("Function properties for")[0]
    registers = re.search(r"Used (\d+) registers", mine)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", mine)
    shared = re.search(r"(\d+) bytes smem", mine)
    if not registers or not frame:
        raise RuntimeError(f"ptxas says nothing of {symbol}:\n{log}")
    stack, stores, loads = map(int, frame.groups())
    return {
        "symbol": symbol,
        "registers": int(registers[1]),
        "static_shared_bytes": int(shared[1]) if shared else 0,
        "spill_bytes": stores + loads,
        "stack_bytes": stack,
    }
