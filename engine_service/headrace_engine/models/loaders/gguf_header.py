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
from typing import Any

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.gguf_cursor import MAGIC, U32, U64, Cursor
from headrace_engine.models.loaders.gguf_types import STORAGE_TYPES
from headrace_engine.models.loaders.opening import open_model_file
from headrace_engine.models.loaders.safetensors import LONGEST_NAME, MAX_HEADER

_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_PAIRS = 2**12
_MAX_TENSORS = 2**17
_MAX_ENTRIES = 2**22
"""Maximum entries of all arrays together: three times those of the largest known vocabulary, with its merges."""

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


class _Parser(Cursor):
    """Parses one header."""

    _entries = 0

    def header(self) -> GgufHeader:
        """Parse everything from the magic number to the first value."""
        self._check_version(self.scalar(U32))
        tensor_count = self.count("tensors", _MIN_TENSOR, _MAX_TENSORS)
        pair_count = self.count("pairs of metadata", _MIN_PAIR, _MAX_PAIRS)
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            self._pair(metadata)
        described = [self._description() for _ in range(tensor_count)]
        start = self._align(self.at, metadata)
        if start > MAX_HEADER:
            raise self.too_long(start)
        tensors = self._place(described, start, self._alignment(metadata))
        return GgufHeader(self.path, metadata, tensors, start)

    def _check_version(self, version: int) -> None:
        if version in _VERSIONS:
            return
        if version & 0xFFFF == 0:
            raise self.error("is big-endian; convert it to little-endian")
        raise self.error(f"has version {version}; supported are {', '.join(map(str, _VERSIONS))}")

    def _pair(self, metadata: dict[str, Any]) -> None:
        key = self.string()
        if len(key) > LONGEST_NAME:
            raise self.error(f"a metadata key has {len(key)} characters; allowed: at most {LONGEST_NAME}")
        if key in metadata:
            raise self.error(f"metadata key {key} stands twice")
        metadata[key] = self._value(self.scalar(U32), key)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(key)
        raise self.error(f"metadata key {key} has unknown value type {kind}")

    def _array(self, key: str) -> list[str] | array[Any]:
        kind = self.scalar(U32)
        if kind == _STRING:
            return self.strings(self._length(key, U64.size))
        if kind not in _SCALARS:
            raise self.error(f"metadata key {key} is an array of unsupported type {kind}")
        numbers = array("B" if kind == _BOOLEAN else _SCALARS[kind].format[1:])
        length = self._length(key, numbers.itemsize)
        begin = self.advance(length * numbers.itemsize)
        numbers.frombytes(memoryview(self.data)[begin : self.at])
        return numbers

    def _length(self, key: str, smallest: int) -> int:
        """Parse the length of an array."""
        length = self.count(f"entries of {key}", smallest, _MAX_ENTRIES)
        self._entries += length
        if self._entries > _MAX_ENTRIES:
            text = f"{self._entries} entries of arrays up to {key}; allowed: at most {_MAX_ENTRIES} in all"
            raise self.error(f"its metadata has {text}")
        return length

    def _description(self) -> tuple[str, tuple[int, ...], int, int]:
        """Parse name, shape, type number and offset of one tensor."""
        name = self.string()
        if len(name) > LONGEST_NAME:
            raise self.error(f"a tensor's name has {len(name)} characters; allowed: at most {LONGEST_NAME}")
        dimensions = self.scalar(U32)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self.error(f"tensor {name} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
        sizes = tuple(self.scalar(U64) for _ in range(dimensions))
        return name, sizes[::-1], self.scalar(U32), self.scalar(U64)

    def _place(
        self, described: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in described:
            if name in tensors:
                raise self.error(f"tensor {name} stands twice")
            if offset % alignment:
                raise self.error(f"tensor {name} begins at byte {offset}, which is no multiple of {alignment}")
            tensors[name] = self._tensor(name, shape, kind, start + offset)
        self._check_overlap(tensors)
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        storage = STORAGE_TYPES.get(kind)
        if storage is None:
            raise self.error(f"tensor {name} has unknown type {kind}")
        if shape[-1] % storage.block:
            raise self.error(
                f"tensor {name}: rows of {shape[-1]} do not divide into {storage.name} blocks of {storage.block}"
            )
        tensor = StoredTensor(name, storage.name, shape, self.path, offset, 0)
        nbytes = tensor.elements // storage.block * storage.bytes
        if offset + nbytes > self.size:
            raise self.error(f"truncated: {self.size} bytes, expected at least {offset + nbytes} for tensor {name}")
        return StoredTensor(name, storage.name, shape, self.path, offset, nbytes)

    def _check_overlap(self, tensors: Mapping[str, StoredTensor]) -> None:
        end, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise self.error(
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
            raise self.error(f"general.alignment = {shown(alignment)} must be a power of two")
        return alignment
