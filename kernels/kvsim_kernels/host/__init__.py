"""The unmodified .cu on the CPU: g++ with `cuda_host.h`, one shared library a kernel, built when first asked for.

Modes: `plain`, `asan` (AddressSanitizer and UBSan) and `tsan` (ThreadSanitizer); the environment variable
`KVSIM_KERNELS_HOST` chooses. A sanitizer must be in the process from its start: `environment(mode)` gives the
variables for a subprocess.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .. import store
from ..build import CSRC, sources

HERE = Path(__file__).parent
FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
MODES = {
    "plain": [],
    "asan": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"],
    "tsan": ["-fsanitize=thread"],
}
LAUNCH = "kvsim_launch"


@cache
def compiler() -> tuple[str, str]:
    """Path and version of g++; FileNotFoundError if there is none."""
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        raise FileNotFoundError("running kernels on the CPU needs g++ 11 or newer, which is not installed (or set CXX)")
    return path, subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


def mode() -> str:
    chosen = os.environ.get("KVSIM_KERNELS_HOST", "plain")
    if chosen not in MODES:
        raise ValueError(f"KVSIM_KERNELS_HOST is {chosen!r}, not one of {', '.join(MODES)}")
    return chosen


@cache
def function(source: str, expression: str) -> Callable[..., int]:
    """The kernel as a C function (grid, block, dynamic shared bytes, arguments), like cuLaunchKernel; returns 0."""
    flags = [*FLAGS, *MODES[mode()]]
    language = [(HERE / name).read_text() for name in ("cuda_host.h", "device_host.h")]
    runtime = (HERE / "runtime.cpp").read_text()
    common = [*language, *flags, *compiler()]
    scheduler = store.fetch(
        store.key(runtime, *common) + f".{mode()}.o",
        lambda: built(f'#include "{HERE / "runtime.cpp"}"\n', [*flags, "-c"]),
    )
    shim = (
        f'#include "{HERE / "cuda_host.h"}"\n#include "{CSRC / source}"\n'
        f'extern "C" int {LAUNCH}(const unsigned* grid, const unsigned* block, unsigned shared, void** arguments) {{\n'
        f"    return host::launch<{expression}>(grid, block, shared, arguments);\n}}\n"
    )
    path = store.fetch(
        store.key(sources(source), expression, runtime, *common) + f".{mode()}.so",
        lambda: built(shim, [*flags, "-shared"], scheduler),
    )
    launch: Callable[..., int] = getattr(ctypes.CDLL(str(path)), LAUNCH)
    return launch


def built(text: str, flags: list[str], *objects: Path) -> bytes:
    """What g++ makes of the source `text`, linked with `objects`; RuntimeError with its messages if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / "kernel.cpp", Path(scratch) / "out"
        source.write_text(text)
        command = [compiler()[0], *flags, str(source), *map(str, objects), "-o", str(out)]
        clean = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # no sanitizer in g++
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
        if done.returncode:
            raise RuntimeError(f"g++ failed:\n{text}\n{done.stderr}")
        return out.read_bytes()


def environment(sanitizer: str) -> dict[str, str]:
    """Variables for a subprocess whose kernels run under `asan` or `tsan`: any report ends it with a failure."""
    library = {"asan": "libasan.so", "tsan": "libtsan.so"}[sanitizer]
    path = subprocess.run([compiler()[0], f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return {
        "KVSIM_KERNELS_HOST": sanitizer,
        "LD_PRELOAD": str(Path(path.stdout.strip()).resolve()),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=66",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1",
        "OMP_NUM_THREADS": "1",
    }
