"""How many instructions the tensor-core loop of a cubin has: a static count, for a chip that is not here.

A cubin is an ELF file whose section `.text.<symbol>` holds instructions of 16 bytes. The low 12 bits are the opcode;
a branch gives its target relative to the next instruction. (Checked against nvdisasm.)
"""

from __future__ import annotations

import struct

BRANCH, TENSOR_CORE = 0x947, 0x23C      # BRA, HMMA
SIZE = 16


def instructions(code: bytes, symbol: str) -> list[int]:
    """The 128-bit instructions of a kernel; KeyError if the cubin has no such kernel."""
    sections, entry, count, names_index = struct.unpack_from("<Q", code, 0x28) + struct.unpack_from("<HHH", code, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", code, sections + i * entry) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, size in headers:
        start = names + name
        if code[start : code.index(b"\0", start)] == f".text.{symbol}".encode():
            return [int.from_bytes(code[i : i + SIZE], "little") for i in range(offset, offset + size, SIZE)]
    raise KeyError(symbol)


def target(index: int, instruction: int, arch: str) -> int:
    """The index that the branch at `index` goes to."""
    high = instruction >> 34 & (1 << 48) - 1
    offset = high - (1 << 48) if high >> 47 else high
    if arch not in ("sm_80", "sm_86", "sm_89"):         # the low byte lies apart since Hopper
        offset = offset << 8 | instruction >> 16 & 0xFF
    return index + 1 + offset * 4 // SIZE


def loop_instructions(code: bytes, symbol: str, arch: str) -> int:
    """Instructions of the smallest loop that uses the tensor cores; 0 if there is none."""
    all = instructions(code, symbol)
    opcodes = [instruction & 0xFFF for instruction in all]
    loops = [(target(i, instruction, arch), i) for i, instruction in enumerate(all) if opcodes[i] == BRANCH]
    sizes = [end - start + 1 for start, end in loops if start <= end and TENSOR_CORE in opcodes[start:end]]
    return min(sizes, default=0)
