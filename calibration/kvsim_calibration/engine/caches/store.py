"""How rows are kept: tensors [A, B, kv heads, channels] a layer, as numbers or as codes with scales.

A × B is sequences × capacity or blocks × block size, as in `kvsim_kernels.caches`, whose kernels can work on these very
tensors. The formats int8, fp8 (a scale for each token and head) and int4 (scale and zero for each group of channels)
are those of `kvsim_kernels.reference.quantize`, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Tensor = torch.Tensor
Format = Literal["plain", "int8", "fp8", "int4"]
Index = int | Tensor

HALF_MAX = 65504.0
FP8_MAX = 448.0


@dataclass(frozen=True)
class Rows:
    """What the model gives: KV heads × channels numbers for a token's keys, as many for its values, in every layer."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class Store:
    """Rows of all layers in one format."""

    def __init__(self, rows: Rows, lead: tuple[int, int], format: Format = "plain", group: int = 32) -> None:
        """`lead`: (A, B). `group`: channels that share a scale in int4."""
        self.rows, self.format, self.group = rows, format, group
        dtype = {"plain": rows.dtype, "int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}[format]
        channels = rows.head_dim // 2 if format == "int4" else rows.head_dim
        shape = (*lead, rows.kv_heads)

        def zeros(*rest: int, dtype: torch.dtype) -> list[Tensor]:
            return [torch.zeros(*shape, *rest, dtype=dtype, device=rows.device) for _ in range(rows.layers)]

        self.keys, self.values = zeros(channels, dtype=dtype), zeros(channels, dtype=dtype)
        scales = {"plain": None, "int8": (2,), "fp8": (2,), "int4": (2, rows.head_dim // group, 2)}[format]
        self.scales = None if scales is None else zeros(*scales, dtype=torch.float16)
        self._gathered: dict[str, Tensor] = {}
        """blocks put side by side, in memory that is taken once: new pages cost several times what copying does"""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *(self.scales or ())))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Row i of k and v [tokens, kv heads, head size] goes to slot slots[i] = a · B + b."""
        for which, (held, new) in enumerate(((self.keys[layer], k), (self.values[layer], v))):
            if self.scales is None:
                held.flatten(0, 1)[slots] = new
            else:
                codes, scales = quantize(new, self.format, self.group)
                _bytes(held).flatten(0, 1)[slots] = _bytes(codes)
                self.scales[layer].flatten(0, 1)[slots, :, which] = scales

    def read(self, layer: int, at: Index, length: int) -> tuple[Tensor, Tensor]:
        """The first `length` rows of `at`: a row of A (a view, where it is not quantized) or several, one behind the
        other (int64 tensor of block ids). Good until the next `read`."""
        return self._read(layer, 0, at, length), self._read(layer, 1, at, length)

    def _read(self, layer: int, which: int, at: Index, length: int) -> Tensor:
        def take(name: str, tensor: Tensor) -> Tensor:
            return (tensor[at] if isinstance(at, int) else self._gather(name, tensor, at))[:length]

        held = (self.values if which else self.keys)[layer]
        name = "values" if which else "keys"
        if self.scales is None:
            return take(name, held)
        codes = take(name, _bytes(held)).view(held.dtype)
        return numbers(codes, take("scales", self.scales[layer])[:, :, which], self.format).to(self.rows.dtype)

    def _gather(self, name: str, tensor: Tensor, blocks: Tensor) -> Tensor:
        """Blocks of `tensor` one behind the other."""
        room = self._gathered.get(name)
        if room is None or len(room) < len(blocks):
            room = self._gathered[name] = tensor.new_empty(2 * len(blocks), *tensor.shape[1:])
        return torch.index_select(tensor, 0, blocks, out=room[: len(blocks)]).flatten(0, 1)

    def keep(self, layer: int, row: int, indices: Tensor) -> None:
        """Move tokens `indices` [kv heads, kept], rising, of contiguous row `row` to its beginning, head by head."""
        planes = [self.keys[layer], self.values[layer]] + ([self.scales[layer]] if self.scales else [])
        heads = torch.arange(self.rows.kv_heads, device=self.rows.device)[:, None]
        for plane in planes:
            held = _bytes(plane)[row]
            held[: indices.shape[1]] = held[indices, heads].transpose(0, 1)


def _bytes(tensor: Tensor) -> Tensor:
    """float8 as its bytes: torch does not index it."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor


def quantize(x: Tensor, format: Format, group: int = 32) -> tuple[Tensor, Tensor]:
    """Codes and float16 scales of x [..., channels]: scales [...], int4 [..., groups, 2]. Finite x only."""
    x = x.float()
    if format == "int4":
        grouped = x.unflatten(-1, (-1, group))
        zero = grouped.amin(-1).clamp(-HALF_MAX, HALF_MAX).half()
        scale = ((grouped.amax(-1) - zero.float()).clamp(min=0) / 15).clamp(max=HALF_MAX).half()
        codes = _over(grouped - zero.float()[..., None], scale).clamp(0, 15).round().to(torch.uint8).flatten(-2)
        return codes[..., 0::2] | codes[..., 1::2] << 4, torch.stack((scale, zero), -1)
    most = 127.0 if format == "int8" else FP8_MAX
    scale = (x.abs().amax(-1) / most).clamp(max=HALF_MAX).half()
    scaled = _over(x, scale).clamp(-most, most)
    return (scaled.round().to(torch.int8) if format == "int8" else scaled.to(torch.float8_e4m3fn)), scale


def _over(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale, as the kernels compute it: times the reciprocal; 0 where the scale is 0."""
    wide = scale.float()[..., None]
    return torch.where(wide > 0, x * (1 / wide), 0)


def numbers(codes: Tensor, scales: Tensor, format: Format) -> Tensor:
    """What codes and scales stand for, float32 [..., channels]."""
    if format == "int4":
        grouped = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).unflatten(-1, (scales.shape[-2], -1))
        return (grouped * scales[..., :1].float() + scales[..., 1:].float()).flatten(-2)
    return codes.float() * scales.float()[..., None]
