"""`kvsim calibrate` itself: choose device and backend, measure, fit, write the profile, say how far off it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.errors import InputError
from kvsim.registry import unknown

if TYPE_CHECKING:
    import torch

    from kvsim.device import DeviceProfile
    from kvsim_calibration.backends.grid import Size
    from kvsim_calibration.backends.session import Outcome, Run
    from kvsim_calibration.backends.store import Store

BACKENDS = ("cuda", "torch")
INSTALL = "pip install 'kvsim[calibrate]'"
MODELS = {"cpu": "smollm2-135m", "cuda": "llama-3.1-8b"}
"""whose kernels are timed unless the user names models"""
MOST_CONTEXT = 1 << 20
"""tokens: one step of a longer prompt would outlast any budget"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants measured."""

    models: tuple[str, ...]
    out: Path
    seconds: float
    device: str | None = None
    backend: str | None = None
    resume: bool = False
    threads: int | None = None
    dtypes: tuple[str, ...] = ()
    batch: int | None = None
    context: int | None = None
    chunk: int | None = None


def rows_path(out: Path) -> Path:
    """Where the raw rows of a profile are: `a100.json` → `a100.rows.jsonl`."""
    return out.with_name(out.name.removesuffix(".json") + ".rows.jsonl")


def calibrate(asked: Asked, made_by: str) -> tuple[DeviceProfile, Store, Outcome]:
    """Measure within the budget, then fit all rows there are. Raises InputError for what can't be measured here."""
    if asked.out.suffix != ".json":
        raise InputError(f"--out {asked.out}: a profile's name ends in .json")
    needs("torch", "scipy")
    from kvsim.model import load_model
    from kvsim.progress import progress
    from kvsim_calibration.backends import machine, session
    from kvsim_calibration.backends.grid import cases
    from kvsim_calibration.backends.store import Store

    device = device_of(asked.device)
    backend = backend_of(asked.backend, device)
    threads = pinned(asked.threads)
    dtypes = asked.dtypes or (("fp32", "bf16") if device.type == "cpu" else ("bf16",))
    size = size_of(asked, device, backend, dtypes)
    models = [load_model(name) for name in asked.models or (MODELS.get(device.type, MODELS["cpu"]),)]
    grid = cases(models, size)
    about = machine.describe(device, backend, threads, dtypes)
    path = rows_path(asked.out)
    store = Store(path)
    if store.rows and not asked.resume:
        raise InputError(f"{path} holds {len(store.rows)} raw rows of an earlier run: go on with --resume, "
                         "or choose another --out")
    store.describe(about)
    with progress(f"calibrating {about['name']}") as bar:
        outcome = session.measure(grid, run_of(backend, device, about, size), store, asked.seconds,
                                  lambda _, done, total: bar(done, total))
    return fitted(store, made_by), store, outcome


def fitted(store: Store, made_by: str) -> DeviceProfile:
    """The profile of all raw rows of a store. Raises InputError where there are too few."""
    needs("scipy")
    from kvsim_calibration.backends import measured
    from kvsim_calibration.build import Options, build
    from kvsim_calibration.progress import Steps

    if store.machine is None:
        raise InputError(f"{store.path}: no such file of raw rows, or an empty one")
    base = measured.base_profile(store)
    with Steps() as steps:
        return build(base, store.machine["backend"], measured.rows_of(store), made_by,
                     Options(tier="measured", wanted=False, tolerance=0.02), steps)


def needs(*modules: str) -> None:
    """Raises InputError unless these can be imported."""
    import importlib.util

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"kvsim calibrate needs {' and '.join(missing)}: {INSTALL}")


def device_of(name: str | None) -> torch.device:
    """The torch device of that name; without one the first GPU, else the CPU. Raises InputError."""
    import torch

    from kvsim_calibration.engine.memory import steady_memory

    steady_memory()
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        why = str(error).splitlines()[0].split(". ")[0]
        raise InputError(f"--device {name} can't be used ({why}): here there is {', '.join(there)}") from None
    return torch.device(f"cuda:{device.index or 0}") if device.type == "cuda" else device


def same_kind(profile: DeviceProfile, device: str) -> None:
    """Raises InputError where a GPU's profile is to speak for a CPU, or a CPU's for a GPU."""
    if profile.id.startswith("cpu") != device.startswith("cpu"):
        raise InputError(f"{profile.id} is no profile of {device}, where the measuring is done; make one with "
                         f"kvsim calibrate --device {device}")


def backend_of(name: str | None, device: torch.device) -> str:
    """The backend to use. Raises InputError for one that does not exist or does not fit the device."""
    if name is None:
        return "cuda" if device.type == "cuda" and _has_kernels() else "torch"
    if name not in BACKENDS:
        raise unknown("backend", name, list(BACKENDS))
    if name == "cuda":
        if device.type != "cuda":
            raise InputError(f"--backend cuda needs an NVIDIA GPU, --device {device} is none: use --backend torch")
        needs("cuda.core", "kvsim_kernels")
    return name


def _has_kernels() -> bool:
    try:
        needs("cuda.core", "kvsim_kernels")
    except (InputError, ModuleNotFoundError):
        return False
    return True


def pinned(threads: int | None) -> int:
    """Give torch a fixed number of threads: those asked for, else one a core that this process may use.

    Raises InputError for more than there are cores: they would take turns, and with very many torch crashes."""
    import torch

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = threads or allowed
    if count > allowed:
        raise InputError(f"--threads is {count}; this process may use {allowed} cores")
    torch.set_num_threads(count)
    return count


def size_of(asked: Asked, device: torch.device, backend: str, dtypes: tuple[str, ...]) -> Size:
    """How far the grid goes: what a device of this kind serves, within a quarter of its free memory."""
    import torch

    from kvsim_calibration.backends.grid import Size
    from kvsim_calibration.engine.setup import DTYPES, free_bytes

    for dtype in dtypes:
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, list(DTYPES))
        if backend == "cuda" and dtype != "bf16":
            raise InputError(f"--dtypes {dtype}: the cuda backend times bf16; others are for --backend torch")
    if (asked.context or 0) > MOST_CONTEXT:
        raise InputError(f"--max-context is {asked.context}; the grid goes to {MOST_CONTEXT:,} tokens at most")
    if device.type == "cuda":
        devices, batch, context, chunk = torch.cuda.device_count(), 256, 32_768, 8192
    else:
        devices, batch, context, chunk = 1, 16, 4096, 512
    return Size(batch=asked.batch or batch, context=asked.context or context, chunk=asked.chunk or chunk,
                cache_bytes=min(free_bytes(str(device)) // 4, 32 << 30), dtypes=dtypes, devices=devices,
                quantized_prefill=backend == "torch", copies=1 << 30 if device.type == "cuda" else 1 << 27)


def run_of(backend: str, device: torch.device, about: dict[str, Any], size: Size) -> Run:
    """The backend, ready to time cases."""
    if backend == "cuda":
        from kvsim_calibration.backends.cudarun import CudaRun

        cuda: Run = CudaRun(device, size.dtypes[0], about["last_cache_bytes"], size.cache_bytes)
        return cuda
    from kvsim_calibration.backends.torchrun import TorchRun

    return TorchRun(device, size.dtypes[0], about["last_cache_bytes"], size.cache_bytes)
