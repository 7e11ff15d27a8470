"""A cursor over the header of a GGUF file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from headrace_engine.errors import BadModel
from headrace_engine.models.loaders.safetensors import MAX_HEADER

MAGIC = b"GGUF"
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
_READ_AHEAD = 2**20


class Cursor:
    """A cursor over one file, after its magic number; every step is checked against the file's size.

    Attributes:
        path: path of the file.
        size: its bytes.
        at: byte that the cursor is at.
        data: the bytes read so far.
    """

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self._file = file
        self.size = size
        self.data = bytearray(MAGIC)
        self.at = len(MAGIC)

    def count(self, what: str, smallest: int, most: int) -> int:
        """Parse a number of entries, each of at least `smallest` bytes."""
        count: int = self.scalar(U64)
        if count * smallest > self.size - self.at:
            raise self.error(f"damaged or truncated: {count} {what} do not fit into its {self.size} bytes")
        if count > most:
            raise self.error(f"has {count} {what}; allowed: at most {most}")
        return count

    def string(self) -> str:
        """Parse a string."""
        length: int = self.scalar(U64)
        begin = self.advance(length)
        try:
            return self.data[begin : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"the string at byte {begin} is not UTF-8: {error.reason}") from error

    def strings(self, count: int) -> list[str]:
        """Parse consecutive strings; those already in the buffer cost little more than their decoding."""
        data, strings, unpack = self.data, list[str](), U64.unpack_from
        for _ in range(count):
            begin = self.at + U64.size
            end = begin + unpack(data, self.at)[0] if begin <= len(data) else -1
            if not begin <= end <= len(data):
                strings.append(self.string())
                continue
            try:
                strings.append(data[begin:end].decode())
            except UnicodeDecodeError:
                self.string()  # Raises an error that names the offset.
            self.at = end
        return strings

    def scalar(self, layout: struct.Struct) -> Any:
        """Parse one number."""
        return layout.unpack_from(self.data, self.advance(layout.size))[0]

    def advance(self, count: int) -> int:
        """Pass `count` bytes; return the first one's index in `data`."""
        begin = self.at
        if count > self.size - begin:
            raise self.error(
                f"damaged or truncated: {count} bytes at byte {begin} do not fit into its {self.size} bytes"
            )
        self.at = begin + count
        if self.at > len(self.data):
            self._read_on()
        return begin

    def _read_on(self) -> None:
        """Read the bytes that the cursor has passed, and some beyond."""
        if self.at > MAX_HEADER:
            raise self.too_long(self.at)
        self.data += self._file.read(self.at - len(self.data) + _READ_AHEAD)
        if self.at > len(self.data):
            raise self.error("was truncated while it was read")

    def too_long(self, size: int) -> BadModel:
        """Return the error of a header that is too long."""
        return self.error(f"its header has {size} bytes or more; allowed: at most {MAX_HEADER}")

    def error(self, problem: str) -> BadModel:
        """Return an error that names the file."""
        return BadModel(f"{self.path.name}: {problem}")
