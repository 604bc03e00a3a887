"""torch.cuda without a GPU: tensors "on cuda:0" lie in host memory, kernels run on the CPU runner.

Beneath it are the real cuda.core and the driver of libcuda.cpp. What CUDA forbids is an error here, too: tensors of two
devices in one operation, NumPy on device memory, waiting for the device or loading code while a graph is captured,
launching on another stream than the one that is captured. Launches in a capture run when the graph is replayed.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
SIZES = {"int": 4, "float": 4, "unsigned int": 4, "long long": 8}
WAITS = {"cpu", "item", "tolist", "__bool__", "__int__", "__index__", "__float__", "equal", "nonzero"}
ACROSS = {"copy_", "to", "cpu", "__getitem__", "__setitem__", "is_pinned"}
ABOUT = SimpleNamespace(
    name="Fake GPU", major=9, minor=0, multi_processor_count=2, total_memory=8 << 30, L2_cache_size=1 << 14
)
INTS, POINTERS = ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p)
LAUNCHED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, INTS, INTS, ctypes.c_uint, ctypes.c_void_p, POINTERS)
NOT_PERMITTED = 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED


class Stream:
    """A stream is a number: what is launched on it has run when the launch returns."""

    handles = iter(range(0x100, 1 << 30))

    def __init__(self, device: object = None, handle: int | None = None) -> None:
        self.cuda_stream = next(self.handles) if handle is None else handle

    def wait_stream(self, other: Stream) -> None: ...

    def synchronize(self) -> None:
        waited()


class Graph:
    def __init__(self) -> None:
        self.launches: list[Callable[[], None]] = []
        self.kept: list[object] = []  # memory that the captured operations use

    def replay(self) -> None:
        for launch in self.launches:
            launch()


class Event:
    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self, stream: object = None) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class State:
    stream = Stream(handle=0)
    capture: Graph | None = None


def waited() -> None:
    if State.capture is not None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


@contextlib.contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    before, State.stream = State.stream, stream
    try:
        yield
    finally:
        State.stream = before


@contextlib.contextmanager
def captured(graph: Graph) -> Iterator[None]:
    waited()
    with on_stream(Stream()):
        State.capture = graph
        driver().fake_capturing(1)
        try:
            yield
        finally:
            State.capture = None
            driver().fake_capturing(0)


@cache
def driver() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.fake_demangled.restype = ctypes.c_char_p
    return library


def instantiation(symbol: bytes) -> tuple[str, list[int]]:
    """A symbol's expression, as C++ writes it, and the sizes of its parameters."""
    text = driver().fake_demangled(symbol).decode().removeprefix("void ")
    depth, commas, begin = 0, [], 0
    for at, letter in enumerate(text):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "(" and depth == 1:
            begin = at
        if begin and depth == 1 and letter == ",":
            commas.append(at)
    ends = [begin, *commas, len(text) - 1]
    types = [text[a + 1 : b].strip() for a, b in pairwise(ends)]
    return text[:begin], [8 if kind.endswith("*") else SIZES[kind] for kind in types if kind]


@cache
def on_host(symbol: bytes) -> tuple[Callable[..., int], list[int]]:
    from kvsim_kernels import host
    from kvsim_kernels.build import CSRC

    expression, sizes = instantiation(symbol)
    name = expression.partition("<")[0]
    (source,) = (file.name for file in CSRC.glob("*.cu") if re.search(rf"\b{name}\(", file.read_text()))
    return host.function(source, expression), sizes


@LAUNCHED
def launched(symbol: bytes, grid: Any, block: Any, shared: int, stream: int | None, arguments: Any) -> int:
    try:
        run, sizes = on_host(symbol)
        shape = (ctypes.c_uint * 3)(*grid[:3]), (ctypes.c_uint * 3)(*block[:3])
        if State.capture is None:
            return run(*shape, ctypes.c_uint(shared), arguments)
        if (stream or 0) != State.stream.cuda_stream:
            return NOT_PERMITTED
        boxes = [ctypes.create_string_buffer(ctypes.string_at(arguments[i], n), n) for i, n in enumerate(sizes)]
        copied = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
        State.capture.kept.append(boxes)
        State.capture.launches.append(lambda: run(*shape, ctypes.c_uint(shared), copied) and None)
    except Exception:
        traceback.print_exc()
        return NOT_PERMITTED
    return 0


def there(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "_on_gpu", False)


def kind(device: object) -> torch.device:
    return torch.device(device) if isinstance(device, str) else device  # type: ignore[return-value]


class OnGpu(TorchFunctionMode):
    """Marks tensors as being on the GPU, and keeps the rules of that."""

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return GPU if there(args[0]) else func(*args)
        name = getattr(func, "__name__", "")
        if name == "is_pinned":
            return getattr(args[0], "_pinned", False)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in tensors if there(tensor)]
        if ours and name in {"numpy", "__array__"}:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        if ours and name in WAITS:
            waited()
        if ours and name not in ACROSS and any(t.dim() and not there(t) for t in tensors):
            raise RuntimeError(f"{name}: Expected all tensors to be on the same device, cuda:0 and cpu")
        asked = CPU if name == "cpu" else kind(kwargs["device"]) if kwargs.get("device") is not None else None
        if name == "to":
            asked = next((kind(a) for a in args[1:] if isinstance(a, (str, torch.device))), asked)
            args = tuple(CPU if isinstance(a, (str, torch.device)) else a for a in args)
        if asked is not None and "device" in kwargs:
            kwargs["device"] = "meta" if asked.type == "meta" else CPU
        pinned = kwargs.pop("pin_memory", False) or name == "pin_memory"
        made = args[0].clone() if name == "pin_memory" else func(*args, **kwargs)
        on_gpu = bool(ours) if asked is None else asked.type == "cuda"

        def marked(result: Any) -> Any:
            if isinstance(result, torch.Tensor):
                if there(result) != on_gpu and any(result is tensor for tensor in tensors):
                    result = result.clone()  # from one device to the other
                result._on_gpu, result._pinned = on_gpu, pinned or getattr(result, "_pinned", False)
                if State.capture is not None:
                    State.capture.kept.append(result)
            return result

        return tree_map(marked, made)


def install() -> None:
    """From now on, for the whole process, torch has one GPU."""
    driver().fake_on_launch(launched)
    signal.alarm = lambda seconds: 0  # type: ignore[assignment]  # slow kernels are no hanging ones here
    real = torch.Generator
    torch.Generator = lambda device="cpu": real()  # type: ignore[misc,assignment]
    same: dict[str, object] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: ABOUT.name,
        "get_device_properties": lambda device=None: ABOUT,
        "mem_get_info": lambda device=None: (1 << 30, ABOUT.total_memory),
        "max_memory_allocated": lambda device=None: 0,
        "synchronize": lambda device=None: waited(),
        "empty_cache": lambda: None,
        "device": lambda device: contextlib.nullcontext(),
        "Stream": Stream,
        "stream": on_stream,
        "current_stream": lambda device=None: State.stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": captured,
        "is_current_stream_capturing": lambda: State.capture is not None,
    }
    for name, value in same.items():
        setattr(torch.cuda, name, value)
    OnGpu().__enter__()
