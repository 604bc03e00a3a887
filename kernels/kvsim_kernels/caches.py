"""KV caches as the kernels see them: tensors, a layout (contiguous or paged) and a number format.

The row of a token and KV head holds head_dim numbers, for the keys and for the values alike:

| format | dtype | scales (fp16) | a number is |
|---|---|---|---|
| bf16, fp16 | bfloat16, float16 | none | itself |
| int8 | int8 | [..., kv_heads, 2]: of the key row, of the value row | code * scale |
| fp8 | float8_e4m3fn | as int8 | code * scale |
| fp8_tensor | float8_e4m3fn | none; the floats key_scale and value_scale | code * scale |
| int4 | uint8 | [..., kv_heads, 2, head_dim / group, 2]: (scale, zero) of a group | code * scale + zero |

An int4 row is head_dim / 2 bytes: byte i holds channel 2i in its low half, channel 2i + 1 in its high half.
Its groups are of 32, 64 or 128 neighbouring channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import torch

Device = torch.device | str
Format = Literal["bf16", "fp16", "int8", "fp8", "fp8_tensor", "int4"]
DTYPES: dict[Format, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "fp8_tensor": torch.float8_e4m3fn,
    "int4": torch.uint8,
}
HEAD_SIZES = (64, 96, 128, 256)
BLOCK_SIZES = (8, 16, 32, 64, 128)
INT4_GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class Cache:
    """What both layouts share. Made by `ContiguousCache` or `PagedCache`; checked when made (ValueError).

    keys, values: [A, B, kv_heads, row], where A x B are (sequences, capacity) or (blocks, block size).
    scales: see the table above; None for formats without.
    key_scale, value_scale: of the whole cache, for fp8_tensor.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.keys.dtype not in DTYPES.values():
            built = "bfloat16, float16, int8, float8_e4m3fn and uint8 (int4)"
            raise ValueError(f"{name}.keys are {self.keys.dtype}; built are {built}")
        if self.keys.dim() != 4:
            raise ValueError(f"{name}.keys have shape {list(self.keys.shape)}; four dimensions are needed")
        if self.head_dim not in HEAD_SIZES:
            raise ValueError(f"{name}: head size {self.head_dim} is not built, only {', '.join(map(str, HEAD_SIZES))}")
        if not self.kv_heads:
            raise ValueError(f"{name} has no KV heads")
        same(f"{name}.values", self.values, self.keys.shape, self.keys.dtype, self.keys.device)
        for label, tensor in (("keys", self.keys), ("values", self.values), ("scales", self.scales)):
            if tensor is not None and not tensor.is_contiguous():
                raise ValueError(f"{name}.{label} are not contiguous (call .contiguous())")
            if tensor is not None and tensor.data_ptr() % 16:
                raise ValueError(f"{name}.{label} start at an address that is no multiple of 16")
        lead = list(self.keys.shape[:3])
        if self.keys.dtype == torch.int8 or (self.keys.dtype == torch.float8_e4m3fn and self.scales is not None):
            same(f"{name}.scales", self.scales, [*lead, 2], torch.float16, self.keys.device)
        elif self.keys.dtype == torch.uint8:
            groups = self.scales.shape[4] if self.scales is not None and self.scales.dim() == 6 else 0
            if groups < 1 or self.head_dim % groups or self.head_dim // groups not in INT4_GROUPS:
                shape = None if self.scales is None else list(self.scales.shape)
                sizes = ", ".join(map(str, INT4_GROUPS))
                need = f"{lead} + [2, groups, 2] with groups of {sizes} channels"
                raise ValueError(f"{name}.scales have shape {shape}; int4 needs {need}")
            same(f"{name}.scales", self.scales, [*lead, 2, groups, 2], torch.float16, self.keys.device)
        elif self.scales is not None:
            raise ValueError(f"{name}: {self.keys.dtype} keys have no scales")

    @property
    def head_dim(self) -> int:
        return self.keys.shape[3] * (2 if self.keys.dtype == torch.uint8 else 1)

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[2]

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @property
    def format(self) -> Format:
        if self.keys.dtype == torch.float8_e4m3fn:
            return "fp8_tensor" if self.scales is None else "fp8"
        return next(name for name, dtype in DTYPES.items() if dtype == self.keys.dtype)

    @property
    def group(self) -> int:
        """Channels that share a scale in int4; 0 for other formats."""
        return self.head_dim // self.scales.shape[4] if self.format == "int4" and self.scales is not None else 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes, over all KV heads, scales included."""
        tensors = [self.keys, self.values] + ([] if self.scales is None else [self.scales])
        return sum(tensor.nbytes for tensor in tensors) // max(1, self.keys.shape[0] * self.keys.shape[1])

    @classmethod
    def _zeros(cls, lead: list[int], kv_heads: int, head_dim: int, format: Format, group: int, device: Device) -> Self:
        row = head_dim // 2 if format == "int4" else head_dim
        keys, values = (torch.zeros(*lead, kv_heads, row, dtype=DTYPES[format], device=device) for _ in range(2))
        shape = {"int8": [2], "fp8": [2], "int4": [2, head_dim // group, 2]}.get(format)
        scales = None if shape is None else torch.zeros(*lead, kv_heads, *shape, dtype=torch.float16, device=device)
        return cls(keys, values, scales)


@dataclass(frozen=True)
class ContiguousCache(Cache):
    """keys, values [sequences, capacity, kv_heads, row]: the tokens of a sequence one after the other."""

    @property
    def capacity(self) -> int:
        """Tokens that each sequence has room for."""
        return self.keys.shape[1]

    @classmethod
    def zeros(
        cls,
        sequences: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        format: Format = "bf16",
        *,
        group: int = 32,
        device: Device = "cpu",
    ) -> Self:
        """A cache full of zeros. group: channels a scale, for int4."""
        return cls._zeros([sequences, capacity], kv_heads, head_dim, format, group, device)


@dataclass(frozen=True)
class PagedCache(Cache):
    """keys, values [blocks, block_size, kv_heads, row]: a block table says which blocks a sequence owns, in order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size not in BLOCK_SIZES:
            sizes = ", ".join(map(str, BLOCK_SIZES))
            raise ValueError(f"PagedCache: a block size of {self.block_size} is not built, only {sizes}")

    @property
    def blocks(self) -> int:
        return self.keys.shape[0]

    @property
    def block_size(self) -> int:
        return self.keys.shape[1]

    @classmethod
    def zeros(
        cls,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        format: Format = "bf16",
        *,
        group: int = 32,
        device: Device = "cpu",
    ) -> Self:
        """A cache full of zeros. group: channels a scale, for int4."""
        return cls._zeros([blocks, block_size], kv_heads, head_dim, format, group, device)


def same(
    name: str, tensor: torch.Tensor | None, shape: list[int] | torch.Size, dtype: torch.dtype, device: torch.device
) -> None:
    """ValueError unless the tensor has this shape and dtype and is on this device."""
    if tensor is None:
        raise ValueError(f"{name} are missing: a {dtype} tensor of shape {list(shape)} is needed")
    if list(tensor.shape) != list(shape) or tensor.dtype != dtype or tensor.device != device:
        have = f"{tensor.dtype} of shape {list(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name}: {dtype} of shape {list(shape)} on {device} is needed, given is {have}")
