"""Headers of GGUF files: metadata and tensor descriptions, read with every length checked against the file.

A header names its own lengths, so a damaged one could ask for any amount of memory or time; here a count is believed
only if what it counts still fits into the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.gguf_types import STORAGE_TYPES

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MIN_TENSOR = 8 + 4 + 4 + 8
_MIN_PAIR = 8 + 4 + 1
_STRING, _ARRAY = 8, 9
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
    """What a GGUF file says before its values.

    Attributes:
        metadata: numbers, booleans, strings, and lists of them, by key.
        tensors: by name in the file.
        size: bytes of the header, up to the first value.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    size: int


def read_header(path: Path) -> GgufHeader:
    """The header of one GGUF file.

    Raises:
        BadModel: the file is no GGUF file, is truncated, or its header is damaged; says where.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < len(MAGIC) or file.read(len(MAGIC)) != MAGIC:
                text = "truncated: 0 bytes" if size == 0 else "it does not begin with 'GGUF'"
                raise BadModel(f"{path.name}: not a GGUF file: {text}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path, data, size).header()
    except OSError as error:
        raise BadModel(f"{path.name}: cannot be read: {error.strerror}") from error


class _Parser:
    """A cursor over one file; every step checks that it stays inside."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = len(MAGIC)

    def header(self) -> GgufHeader:
        """Everything from the magic number to the first value."""
        self._check_version(self._scalar(_U32))
        tensor_count = self._count("tensors", _MIN_TENSOR)
        pair_count = self._count("metadata", _MIN_PAIR)
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            self._pair(metadata)
        described = [self._description() for _ in range(tensor_count)]
        start = self._align(self._at, metadata)
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

    def _array(self, key: str) -> list[Any]:
        kind = self._scalar(_U32)
        if kind == _STRING:
            return [self._string() for _ in range(self._count(f"entries of {key}", _U64.size))]
        if kind not in _SCALARS:
            raise self._error(f"metadata key {key} is an array of unsupported type {kind}")
        scalar = _SCALARS[kind]
        count = self._count(f"entries of {key}", scalar.size)
        begin = self._advance(count * scalar.size)
        return [item for (item,) in scalar.iter_unpack(self._data[begin : self._at])]

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type number and offset of one tensor."""
        name = self._string()
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
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._error(f"general.alignment = {alignment!r} must be a power of two")
        return alignment

    def _count(self, what: str, smallest: int) -> int:
        count: int = self._scalar(_U64)
        if count * smallest > self._size - self._at:
            raise self._error(f"damaged or truncated: {count} {what} do not fit into its {self._size} bytes")
        return count

    def _string(self) -> str:
        length: int = self._scalar(_U64)
        begin = self._advance(length)
        try:
            return self._data[begin : self._at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"the string at byte {begin} is not UTF-8: {error.reason}") from error

    def _scalar(self, layout: struct.Struct) -> Any:
        return layout.unpack_from(self._data, self._advance(layout.size))[0]

    def _advance(self, count: int) -> int:
        begin = self._at
        if count > self._size - begin:
            raise self._error(
                f"damaged or truncated: {count} bytes at byte {begin} do not fit into its {self._size} bytes"
            )
        self._at = begin + count
        return begin

    def _error(self, problem: str) -> BadModel:
        return BadModel(f"{self._path.name}: {problem}")
