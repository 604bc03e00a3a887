"""A reader of GGUF files, version 2 and 3: metadata, and tensors as float32.

The layout is that of ggml's docs/gguf.md; the block formats those of ggml's reference dequantization. A quantized row
is blocks of 32 numbers: Q8_0 is (fp16 d, 32 int8), x = d·q; Q4_0 is (fp16 d, 16 bytes), x = d·(q − 8); Q4_1 is
(fp16 d, fp16 m, 16 bytes), x = d·q + m. Byte i of a 4-bit block holds number i in its low half, i + 16 in its high one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.errors import InputError

Bytes = NDArray[np.uint8]
Singles = NDArray[np.float32]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCK = 32


def _half(blocks: Bytes, at: int) -> Singles:
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Singles:
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_0(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8)


def _q4_1(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Singles:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _plain(dtype: Any) -> Callable[[Bytes], Singles]:
    return lambda blocks: np.ascontiguousarray(blocks).view(dtype).astype(np.float32)


def _bf16(blocks: Bytes) -> Singles:
    return (np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


_FORMATS: dict[int, tuple[str, int, int, Callable[[Bytes], Singles]]] = {
    0: ("F32", 1, 4, _plain(np.float32)),
    1: ("F16", 1, 2, _plain(np.float16)),
    2: ("Q4_0", _BLOCK, 18, _q4_0),
    3: ("Q4_1", _BLOCK, 20, _q4_1),
    8: ("Q8_0", _BLOCK, 34, _q8_0),
    30: ("BF16", 1, 2, _bf16),
}
"""number in the file → name, numbers a block, bytes a block, how to read blocks [n, bytes] as [n, numbers]"""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies. `shape` is as PyTorch has it, [rows, columns]; the file stores it reversed."""

    shape: tuple[int, ...]
    format: int
    offset: int


class Gguf:
    """`metadata` and `tensors` of a file; `read(name)` gives one tensor as float32."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}
        try:
            self._parse()
        except (struct.error, UnicodeDecodeError, KeyError, MemoryError) as error:
            raise InputError(f"{path}: is damaged or cut short; a whole GGUF file is needed") from error
        del self._file

    def formats(self) -> list[str]:
        """Names of the tensors' formats."""
        known = {number: entry[0] for number, entry in _FORMATS.items()}
        return sorted({known.get(t.format, f"type {t.format}") for t in self.tensors.values()})

    def read(self, name: str) -> Singles:
        """One tensor, float32. Raises InputError for a format that is not read here, or one that is cut short."""
        tensor = self.tensors[name]
        if tensor.format not in _FORMATS:
            known = ", ".join(entry[0] for entry in _FORMATS.values())
            raise InputError(f"{self.path}: {name} has GGUF type {tensor.format}; kvsim reads {known}")
        _, numbers, size, decode = _FORMATS[tensor.format]
        count = int(np.prod(tensor.shape)) // numbers
        with open(self.path, "rb") as file:
            file.seek(self._data + tensor.offset)
            raw = np.fromfile(file, np.uint8, count * size)
        if raw.size < count * size:
            raise InputError(f"{self.path}: {name} is cut short; a whole GGUF file is needed")
        return decode(raw.reshape(count, size)).reshape(tensor.shape)

    def _parse(self) -> None:
        with open(self.path, "rb") as self._file:
            magic, version = self._unpack("4sI")
            if magic != b"GGUF" or version not in (2, 3):
                raise InputError(f"{self.path}: is not a GGUF file of version 2 or 3")
            tensors, entries = self._unpack("QQ")
            for _ in range(entries):
                key = self._string()
                self.metadata[key] = self._value(self._unpack("I")[0])
            for _ in range(tensors):
                name = self._string()
                shape = self._unpack(f"{self._unpack('I')[0]}Q")
                self.tensors[name] = Tensor(tuple(reversed(shape)), *self._unpack("IQ"))
            alignment = self.metadata.get("general.alignment", 32)
            self._data = -(-self._file.tell() // alignment) * alignment

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        return struct.unpack(layout, self._file.read(struct.calcsize(layout)))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        return str(self._unpack(f"{length}s")[0], "utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._unpack("IQ")
            if inner in _SCALARS:
                return list(self._unpack(f"{count}{_SCALARS[inner]}"))
            return [self._value(inner) for _ in range(count)]
        return self._unpack(_SCALARS[kind])[0]
