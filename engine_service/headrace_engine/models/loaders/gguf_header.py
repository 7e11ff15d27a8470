"""Headers of GGUF files: metadata and tensor descriptions, read with every length checked against the file.

A header contains its own lengths, so a damaged one could demand any amount of memory or time. A count is accepted only
if its entries fit into the rest of the file; and since a sparse file can have any size, headers are also limited in
bytes and in entries. Lists of numbers are kept as arrays.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.gguf_types import STORAGE_TYPES
from headrace_engine.models.loaders.opening import open_model_file
from headrace_engine.models.loaders.safetensors import LONGEST_NAME, MAX_HEADER

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_PAIRS = 2**12
_MAX_TENSORS = 2**17
_MAX_ENTRIES = 2**22
"""Maximum entries of all arrays together: three times those of the largest known vocabulary, with its merges."""

_READ_AHEAD = 2**20
_MIN_TENSOR = 8 + 4 + 4 + 8
_MIN_PAIR = 8 + 4 + 1
_BOOLEAN, _STRING, _ARRAY = 7, 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    number: struct.Struct(f"<{code}")
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file: everything before the values.

    Attributes:
        metadata: numbers, booleans, strings, lists of strings, and arrays of numbers (a boolean is 0 or 1), by key.
        tensors: by name in the file.
        size: bytes of the header, up to the first value.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    size: int


def read_header(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises:
        BadModel: the file is not a GGUF file, is truncated, or its header is damaged; names the offset or key.
    """
    with open_model_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < len(MAGIC) or file.read(len(MAGIC)) != MAGIC:
            text = "truncated: 0 bytes" if size == 0 else "it does not begin with 'GGUF'"
            raise BadModel(f"{path.name}: not a GGUF file: {text}")
        return _Parser(path, file, size).header()


class _Parser:
    """A cursor over one file; every step is checked against the file's size."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._data = bytearray(MAGIC)
        self._at = len(MAGIC)
        self._entries = 0

    def header(self) -> GgufHeader:
        """Parse everything from the magic number to the first value."""
        self._check_version(self._scalar(_U32))
        tensor_count = self._count("tensors", _MIN_TENSOR, _MAX_TENSORS)
        pair_count = self._count("pairs of metadata", _MIN_PAIR, _MAX_PAIRS)
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            self._pair(metadata)
        described = [self._description() for _ in range(tensor_count)]
        start = self._align(self._at, metadata)
        if start > MAX_HEADER:
            raise self._too_long(start)
        tensors = self._place(described, start, self._alignment(metadata))
        return GgufHeader(self._path, metadata, tensors, start)

    def _check_version(self, version: int) -> None:
        if version in _VERSIONS:
            return
        if version & 0xFFFF == 0:
            raise self._error("is big-endian; convert it to little-endian")
        raise self._error(f"has version {version}; supported are {', '.join(map(str, _VERSIONS))}")

    def _pair(self, metadata: dict[str, Any]) -> None:
        key = self._string()
        if len(key) > LONGEST_NAME:
            raise self._error(f"a metadata key has {len(key)} characters; allowed: at most {LONGEST_NAME}")
        if key in metadata:
            raise self._error(f"metadata key {key} stands twice")
        metadata[key] = self._value(self._scalar(_U32), key)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        raise self._error(f"metadata key {key} has unknown value type {kind}")

    def _array(self, key: str) -> list[str] | array[Any]:
        kind = self._scalar(_U32)
        if kind == _STRING:
            return self._strings(self._length(key, _U64.size))
        if kind not in _SCALARS:
            raise self._error(f"metadata key {key} is an array of unsupported type {kind}")
        numbers = array("B" if kind == _BOOLEAN else _SCALARS[kind].format[1:])
        length = self._length(key, numbers.itemsize)
        begin = self._advance(length * numbers.itemsize)
        numbers.frombytes(memoryview(self._data)[begin : self._at])
        return numbers

    def _length(self, key: str, smallest: int) -> int:
        """Parse the length of an array."""
        length = self._count(f"entries of {key}", smallest, _MAX_ENTRIES)
        self._entries += length
        if self._entries > _MAX_ENTRIES:
            text = f"{self._entries} entries of arrays up to {key}; allowed: at most {_MAX_ENTRIES} in all"
            raise self._error(f"its metadata has {text}")
        return length

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        """Parse name, shape, type number and offset of one tensor."""
        name = self._string()
        if len(name) > LONGEST_NAME:
            raise self._error(f"a tensor's name has {len(name)} characters; allowed: at most {LONGEST_NAME}")
        dimensions = self._scalar(_U32)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"tensor {name} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
        sizes = tuple(self._scalar(_U64) for _ in range(dimensions))
        return name, sizes[::-1], self._scalar(_U32), self._scalar(_U64)

    def _place(
        self, described: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in described:
            if name in tensors:
                raise self._error(f"tensor {name} stands twice")
            if offset % alignment:
                raise self._error(f"tensor {name} begins at byte {offset}, which is no multiple of {alignment}")
            tensors[name] = self._tensor(name, shape, kind, start + offset)
        self._check_overlap(tensors)
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        storage = STORAGE_TYPES.get(kind)
        if storage is None:
            raise self._error(f"tensor {name} has unknown type {kind}")
        if shape[-1] % storage.block:
            raise self._error(
                f"tensor {name}: rows of {shape[-1]} do not divide into {storage.name} blocks of {storage.block}"
            )
        tensor = StoredTensor(name, storage.name, shape, self._path, offset, 0)
        nbytes = tensor.elements // storage.block * storage.bytes
        if offset + nbytes > self._size:
            raise self._error(f"truncated: {self._size} bytes, expected at least {offset + nbytes} for tensor {name}")
        return StoredTensor(name, storage.name, shape, self._path, offset, nbytes)

    def _check_overlap(self, tensors: Mapping[str, StoredTensor]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise self._error(
                    f"tensor {tensor.name} overlaps {before}: it begins at {tensor.offset}, expected {end}"
                )
            end, before = tensor.offset + tensor.nbytes, tensor.name

    def _align(self, at: int, metadata: Mapping[str, Any]) -> int:
        alignment = self._alignment(metadata)
        return (at + alignment - 1) // alignment * alignment

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or alignment < 1
            or alignment & (alignment - 1)
        ):
            raise self._error(f"general.alignment = {shown(alignment)} must be a power of two")
        return alignment

    def _count(self, what: str, smallest: int, most: int) -> int:
        count: int = self._scalar(_U64)
        if count * smallest > self._size - self._at:
            raise self._error(f"damaged or truncated: {count} {what} do not fit into its {self._size} bytes")
        if count > most:
            raise self._error(f"has {count} {what}; allowed: at most {most}")
        return count

    def _string(self) -> str:
        length: int = self._scalar(_U64)
        begin = self._advance(length)
        try:
            return self._data[begin : self._at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"the string at byte {begin} is not UTF-8: {error.reason}") from error

    def _strings(self, count: int) -> list[str]:
        """Parse consecutive strings; those already in the buffer cost little more than their decoding."""
        data, strings, unpack = self._data, list[str](), _U64.unpack_from
        for _ in range(count):
            begin = self._at + _U64.size
            end = begin + unpack(data, self._at)[0] if begin <= len(data) else -1
            if not begin <= end <= len(data):
                strings.append(self._string())
                continue
            try:
                strings.append(data[begin:end].decode())
            except UnicodeDecodeError:
                self._string()  # Raises an error that names the offset.
            self._at = end
        return strings

    def _scalar(self, layout: struct.Struct) -> Any:
        return layout.unpack_from(self._data, self._advance(layout.size))[0]

    def _advance(self, count: int) -> int:
        begin = self._at
        if count > self._size - begin:
            raise self._error(
                f"damaged or truncated: {count} bytes at byte {begin} do not fit into its {self._size} bytes"
            )
        self._at = begin + count
        if self._at > len(self._data):
            self._read_on()
        return begin

    def _read_on(self) -> None:
        """Read the bytes that the cursor has passed, and some beyond."""
        if self._at > MAX_HEADER:
            raise self._too_long(self._at)
        self._data += self._file.read(self._at - len(self._data) + _READ_AHEAD)
        if self._at > len(self._data):
            raise self._error("was truncated while it was read")

    def _too_long(self, size: int) -> BadModel:
        return self._error(f"its header has {size} bytes or more; allowed: at most {MAX_HEADER}")

    def _error(self, problem: str) -> BadModel:
        return BadModel(f"{self._path.name}: {problem}")
