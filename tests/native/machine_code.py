"""The instructions of kernels in a cubin, by their opcodes: nvcc does not always come with a disassembler."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

HMMA, LOAD_LOCAL, STORE_LOCAL = 0x23C, 0x983, 0x387
"""Opcodes of sm_70 and later: products of tensor cores of 16-bit floats, and accesses of local memory."""

_HEADER = struct.Struct("<40xQ10xHHH")
"""Of ELF files of 64 bits: where section headers begin, their size, their number, which one has the names."""
_SECTION = struct.Struct("<I20xQQ")
"""Place of the name, place in the file, bytes."""


def opcodes(cubin: Path) -> dict[str, Counter[int]]:
    """How often each opcode occurs, by mangled name of the kernel."""
    data = cubin.read_bytes()
    begin, size, count, names = _HEADER.unpack_from(data)
    sections = [_SECTION.unpack_from(data, begin + number * size) for number in range(count)]
    at_names = sections[names][1]
    found = {}
    for name_at, place, length in sections:
        name = data[at_names + name_at : data.index(b"\0", at_names + name_at)].decode()
        if name.startswith(".text."):
            found[name.removeprefix(".text.")] = _counted(data[place : place + length])
    return found


def _counted(code: bytes) -> Counter[int]:
    """The opcode is in the low 12 bits of each instruction."""
    return Counter(first & 0xFFF for first, _ in struct.iter_unpack("<QQ", code))
