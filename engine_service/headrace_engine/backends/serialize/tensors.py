"""A model's tensors as they are written: as numbers, or as integer codes with scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace_engine.backends.cpu.weights.numbers import PLAIN, to_bfloat16, to_float16, to_float32
from headrace_engine.backends.cpu.weights.quantize import scale_type
from headrace_engine.backends.cpu.weights.rows import Orders, TensorRows
from headrace_engine.backends.cpu.weights.storage import Storage, all_rows, quantized_rows
from headrace_engine.config import ComputeDtype
from headrace_engine.models.files import BEYOND_FLOAT16, ModelFiles, StoredTensor, TensorInfo
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.quantized_rows import QuantizedType
from headrace_engine.models.table_rows import row_type
from headrace_engine.native import Dtype, Format

_TYPES = {ComputeDtype.FLOAT32: "F32", ComputeDtype.BFLOAT16: "BF16", ComputeDtype.FLOAT16: "F16"}
_VALUES_AT_ONCE = 2**22


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor to write.

    Attributes:
        storage: type name of its values or codes, as in StoredTensor.
        dtype, shape: the same for a safetensors file, which knows codes as bytes.
        parts: its bytes, in order.
    """

    storage: str
    dtype: str
    shape: Sequence[int]
    parts: Iterator[Any]


def whole_tensors(files: ModelFiles) -> list[TensorInfo]:
    """Return the tensors as the files have them, in their order: some hold the rows of several that a model needs."""
    parts: dict[str, list[TensorInfo]] = {}
    for info in sorted(files.tensors.values(), key=lambda info: (info.stored.file, info.stored.offset)):
        parts.setdefault(info.stored.name, []).append(info)
    return [_joined(each) for each in parts.values()]


def _joined(parts: Sequence[TensorInfo]) -> TensorInfo:
    first, nbytes = parts[0], sum(part.stored.nbytes for part in parts)
    last = parts[-1].stored
    assert last.offset + last.nbytes == first.stored.offset + nbytes
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return replace(first, stored=replace(first.stored, shape=shape, nbytes=nbytes))


def written(info: TensorInfo, storage: Storage) -> WrittenTensor:
    """Return a tensor in a storage; dtype AUTO: numbers as in its file. Codes stay what they are in any dtype.

    Raises:
        BadModel: a value does not fit; also while the parts are read.
    """
    kind = storage.quantizes(info.name) if len(info.shape) == 2 else None
    if kind is not None:
        return _coded(info, kind, storage.group)
    stored, coded = info.stored, row_type(info.stored.storage)
    if coded is not None:
        shape = (stored.shape[0], coded.row_bytes(stored.shape[1]))
        return WrittenTensor(coded.name, "U8", shape, _unchanged(stored))
    dtype = _TYPES.get(storage.dtype, stored.storage)
    parts = _unchanged(stored) if dtype == stored.storage else _converted(stored, dtype)
    return WrittenTensor(dtype, dtype, stored.shape, parts)


def _coded(info: TensorInfo, kind: Format, group: int) -> WrittenTensor:
    tensor = TensorRows(info, Orders())
    step = max(1, _VALUES_AT_ONCE // tensor.inputs)
    bounds = range(0, tensor.outputs, step)
    rows = all_rows([quantized_rows(tensor, kind, group, first, min(first + step, tensor.outputs)) for first in bounds])
    assert rows.scales is not None
    bits = 16 if scale_type(kind, rows.scales, rows.offsets) is Dtype.FLOAT16 else 32
    coded = QuantizedType(8 if kind is Format.INT8 else 4, group, bits, has_offsets=rows.offsets is not None)
    codes = rows.numbers.view(np.uint8)
    packed = coded.pack(codes, rows.scales, rows.offsets)
    return WrittenTensor(coded.name, "U8", packed.shape, iter([packed]))


def _unchanged(stored: StoredTensor) -> Iterator[Any]:
    data = map_tensor(stored)
    for begin in range(0, len(data), _VALUES_AT_ONCE):
        yield data[begin : begin + _VALUES_AT_ONCE]


def _converted(stored: StoredTensor, dtype: str) -> Iterator[Any]:
    values = np.frombuffer(map_tensor(stored), dtype=np.uint8)
    width = PLAIN[stored.storage].itemsize
    for begin in range(0, len(values), _VALUES_AT_ONCE * width):
        chunk = values[begin : begin + _VALUES_AT_ONCE * width].copy().view(PLAIN[stored.storage])
        numbers = to_float32(chunk, stored.storage)
        if dtype == "F32":
            yield numbers
        elif dtype == "BF16":
            yield to_bfloat16(numbers)
        else:
            halves = to_float16(numbers)
            if not np.isfinite(halves).all():
                raise stored.error(BEYOND_FLOAT16)
            yield halves
