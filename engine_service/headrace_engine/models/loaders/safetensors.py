"""Headers of safetensors files: 8 bytes of length, a JSON object, then the values without gaps."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.json_files import parse_object
from headrace_engine.models.loaders.opening import open_model_file

_LENGTH = struct.Struct("<Q")
MAX_HEADER = 100_000_000
"""Maximum size of a header, in bytes: the format's own limit."""

LONGEST_NAME = 256
"""Maximum length of a tensor's name, in characters."""

MAX_DIMENSIONS = 8
_MOST = 2**63 - 1
"""Maximum size of a file, in bytes."""


_VALUE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}


def value_bytes(storage: str) -> int:
    """Return the bytes of a value of a storage type of this format."""
    return _VALUE_BYTES[storage]


def read_header(path: Path, most: int = MAX_HEADER) -> tuple[dict[str, StoredTensor], bytes, int]:
    """Return the tensors of one file by name, the header's bytes, and the file's size.

    Args:
        most: maximum size of the header, in bytes.

    Raises:
        BadModel: the file is truncated or too long, or its header is damaged; names expected and actual values.
    """
    header, size = _header_bytes(path, most)
    entries = parse_object(header, path.name)
    entries.pop("__metadata__", None)
    start = _LENGTH.size + len(header)
    tensors = {name: _tensor(path, name, entry, start) for name, entry in entries.items()}
    _check_coverage(path, tensors, start, size)
    return tensors, header, size


def _header_bytes(path: Path, most: int) -> tuple[bytes, int]:
    with open_model_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH.size:
            raise BadModel(f"{path.name}: truncated: {size} bytes, expected at least {_LENGTH.size}")
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > most:
            text = f"header length {length} is above the format's limit {most}"
            raise BadModel(f"{path.name}: damaged, or not a safetensors file: {text}")
        if _LENGTH.size + length > size:
            raise BadModel(f"{path.name}: truncated: {size} bytes, expected {_LENGTH.size + length} for the header")
        return file.read(length), size


def _tensor(path: Path, name: str, entry: object, start: int) -> StoredTensor:
    if len(name) > LONGEST_NAME:
        raise BadModel(f"{path.name}: a tensor's name has {len(name)} characters; allowed: at most {LONGEST_NAME}")
    if not isinstance(entry, dict):
        raise BadModel(f"{path.name}: header entry of tensor {name} is no object")
    storage, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(storage, str) or storage not in _VALUE_BYTES:
        known = ", ".join(_VALUE_BYTES)
        raise BadModel(f"{path.name}: tensor {name} has unknown dtype {shown(storage)}; known are {known}")
    if not isinstance(shape, list) or not all(_is_size(each) for each in shape):
        text = f"has shape {shown(shape)}, not a list of sizes from 0 to {_MOST}"
        raise BadModel(f"{path.name}: tensor {name} {text}")
    if len(shape) > MAX_DIMENSIONS:
        raise BadModel(f"{path.name}: tensor {name} has {len(shape)} dimensions; allowed: at most {MAX_DIMENSIONS}")
    begin, end = _offsets(path, name, entry.get("data_offsets"))
    tensor = StoredTensor(name, storage, tuple(shape), path, start + begin, end - begin)
    expected = tensor.elements * _VALUE_BYTES[storage]
    if tensor.nbytes != expected:
        text = f"spans {tensor.nbytes} bytes, but {storage} {shape} takes {expected}"
        raise BadModel(f"{path.name}: tensor {name} {text}")
    return tensor


def _offsets(path: Path, name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(_is_size(each) for each in value):
        text = f"has data_offsets {shown(value)}, not [begin, end] from 0 to {_MOST}"
        raise BadModel(f"{path.name}: tensor {name} {text}")
    return value[0], value[1]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _check_coverage(path: Path, tensors: Mapping[str, StoredTensor], start: int, size: int) -> None:
    """Check that the tensors fill the file without gaps or overlaps."""
    end, before = start, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            kind = "overlaps" if tensor.offset < end else "leaves a gap after"
            text = f"begins at byte {tensor.offset}, expected {end}"
            raise tensor.error(f"{kind} {before}: it {text}")
        end, before = tensor.offset + tensor.nbytes, tensor.name
    if size != end:
        kind = "truncated" if size < end else "too long"
        raise BadModel(f"{path.name}: {kind}: {size} bytes, expected {end} by its header")
