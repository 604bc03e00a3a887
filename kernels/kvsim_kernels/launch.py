"""One kernel: a template instantiation with its block size and shared memory, launched where its tensors are."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from . import build, host

Argument = torch.Tensor | int | float | None | ctypes.c_int64


@dataclass(frozen=True)
class Kernel:
    """A kernel of `csrc/<source>`.

    source: file in csrc, such as "decode_mma.cu".
    expression: the instantiation as C++ writes it, such as "decode_mma<bf16_t, 128, 8>".
    threads: threads a block (along x).
    shared_bytes: dynamic shared memory a block; static memory comes on top.
    """

    source: str
    expression: str
    threads: int
    shared_bytes: int = 0

    @property
    def name(self) -> str:
        """The function's name, without template arguments."""
        return self.expression.partition("<")[0]

    def launch(self, grid: Sequence[int], *arguments: Argument, device: torch.device) -> None:
        """Run on `grid` blocks (x, y, z) with these arguments, in order.

        A tensor is passed as its pointer, None as a null pointer, an int as a 32-bit int, a float as a 32-bit float,
        a ctypes.c_int64 as it is: a kernel's parameters are pointers, `int`, `float` and `i64` only.
        On a CUDA device it joins torch's current stream and allocates nothing, so it can be captured in a CUDA graph
        once it has run before (the first run loads the code). On the CPU it has run when this returns.
        A grid with a zero does nothing.
        """
        x, y, z = (*grid, 1, 1)[:3]
        if x * y * z == 0:
            return
        if y > 65535 or z > 65535 or x > 2**31 - 1:
            raise ValueError(f"{self.name}: a grid of {x} x {y} x {z} blocks is over 2^31 - 1 x 65535 x 65535")
        values = [converted(self, argument, device) for argument in arguments]
        if device.type == "cuda":
            launch_cuda(self, (x, y, z), values, device)
        elif device.type == "cpu":
            launch_host(self, (x, y, z), values)
        else:
            raise ValueError(f"{self.name}: kernels run on cuda and cpu devices, not on {device}")


def converted(kernel: Kernel, argument: Argument, device: torch.device) -> object:
    """What both launchers understand: a pointer as int, other things as ctypes."""
    if argument is None:
        return 0
    if isinstance(argument, torch.Tensor):
        # Pinned host memory can be read and written by a kernel on the GPU.
        if argument.device.type != device.type and not argument.is_pinned():
            raise ValueError(f"{kernel.name}: a tensor on {argument.device} is passed to a kernel on {device}")
        return argument.data_ptr()
    if isinstance(argument, int):
        if not -(2**31) <= argument < 2**31:
            raise OverflowError(f"{kernel.name}: {argument} does not fit a 32-bit int argument (pass ctypes.c_int64)")
        return ctypes.c_int(argument)
    return ctypes.c_float(argument) if isinstance(argument, float) else argument


def launch_host(kernel: Kernel, grid: tuple[int, int, int], values: Sequence[object]) -> None:
    boxes = [ctypes.c_void_p(value) if isinstance(value, int) else value for value in values]
    pointers = (ctypes.c_void_p * len(boxes))(*[ctypes.addressof(box) for box in boxes])  # type: ignore[arg-type]
    sizes = (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(kernel.threads, 1, 1)
    if host.function(kernel.source, kernel.expression)(*sizes, ctypes.c_uint(kernel.shared_bytes), pointers):
        raise ValueError(f"{kernel.name}: {kernel.shared_bytes} bytes of shared memory are more than any chip has")


class CurrentStream:
    """Torch's current stream, by the protocol that cuda.core asks of a foreign stream."""

    def __init__(self, device: torch.device) -> None:
        self.handle: int = torch.cuda.current_stream(device).cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Known(threading.local):
    """CUDA devices whose context this thread has had: torch makes one current on a thread's first operation there."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


KNOWN = Known()


def launch_cuda(kernel: Kernel, grid: tuple[int, int, int], values: Sequence[object], device: torch.device) -> None:
    from cuda.core import Device, LaunchConfig, launch  # type: ignore[import-untyped]

    index = torch.cuda.current_device() if device.index is None else device.index
    config = LaunchConfig(grid=grid, block=(kernel.threads, 1, 1), shmem_size=kernel.shared_bytes)
    with torch.cuda.device(index):
        if index not in KNOWN.devices:
            Device(index).set_current()
            KNOWN.devices.add(index)
        launch(CurrentStream(device), config, loaded(kernel, index), *values)


@cache
def loaded(kernel: Kernel, index: int) -> object:
    """The kernel on CUDA device `index`, allowed the shared memory that it asks for."""
    from cuda.bindings import driver  # type: ignore[import-untyped]
    from cuda.core import ObjectCode

    major, minor = torch.cuda.get_device_capability(index)
    if (major, minor) < (8, 0):
        name = torch.cuda.get_device_name(index)
        raise ValueError(f"the kernels need compute capability 8.0 or newer; {name} has {major}.{minor}")
    made = build.cubin(kernel.source, kernel.expression, f"sm_{major}{minor}")
    ready = ObjectCode.from_cubin(made.code, name=kernel.name).get_kernel(made.symbol)
    if kernel.shared_bytes + made.static_shared_bytes > 48 << 10:       # more than 48 KiB is had only on request
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _, ordinal = driver.cuDeviceGet(index)
        (status,) = driver.cuKernelSetAttribute(attribute, kernel.shared_bytes, ready.handle, ordinal)
        if int(status):
            raise RuntimeError(f"{kernel.expression}: {kernel.shared_bytes} shared bytes are refused: {status}")
    return ready


def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a CUDA device; 1 for the CPU, where blocks run one after the other."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def capturing(device: torch.device) -> bool:
    """Whether torch's current stream on `device` is being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
