"""Rows of quantized matrices, made of the tensors in which checkpoints of other programs hold them, code by code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.blocks import dequantized
from headrace_engine.models.code_layouts import LAYOUTS, Bytes, Parts
from headrace_engine.models.expert_layouts import EXPERT_LAYOUTS
from headrace_engine.models.files import GROUPED, PLACED, PLACED_COLUMNS, SPREAD, TURNED, Assembly, StoredTensor
from headrace_engine.models.loaders.gguf_types import BLOCKS
from headrace_engine.models.quantized_rows import QuantizedType, quantized_type, unpaired
from headrace_engine.models.table_rows import TableType, table_type

Floats = NDArray[np.float32]
RowType = QuantizedType | TableType

_VALUES_AT_ONCE = 2**22
_ROW_MULTIPLE = 8
"""Rows are assembled in multiples of this: as many lie in one word where codes are packed along the outputs."""

_BFLOAT16_ONE = 0x3F80
_TYPES = {
    "I32": "<u4", "I8": "<u1", "U8": "<u1", "F8_E4M3": "<u1", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


def assemble(stored: StoredTensor, read: Callable[[StoredTensor], memoryview]) -> memoryview:
    """Return the rows of a matrix in its storage type.

    Args:
        stored: the matrix.
        read: returns the bytes of a part of its assembly.

    Raises:
        BadModel: a scale is not finite, or a zero point is out of range or not what the config says.
    """
    assembly = stored.assembly
    assert assembly is not None
    if assembly.layout == GROUPED:
        return _grouped(stored, assembly, read).reshape(-1).data
    if assembly.layout in _PLACING:
        return _PLACING[assembly.layout](stored, assembly, read).reshape(-1).view(np.uint8).data
    parts = [_array(part, read(part)) for part in assembly.parts]
    if assembly.layout in EXPERT_LAYOUTS:
        picked = slice(assembly.first, assembly.first + stored.shape[0] * assembly.step, assembly.step)
        made = EXPERT_LAYOUTS[assembly.layout](assembly.parts, parts, picked)
        return np.ascontiguousarray(made).reshape(-1).view(np.uint8).data
    outputs, inputs = stored.shape
    rows = np.empty((outputs, stored.nbytes // outputs), dtype=np.uint8)
    step = max(1, _VALUES_AT_ONCE // inputs // _ROW_MULTIPLE) * _ROW_MULTIPLE
    for begin in range(0, outputs, step):
        end = min(begin + step, outputs)
        numbers = range(begin + assembly.first, end + assembly.first)
        if assembly.ordered:
            rows[begin:end] = _ordered(assembly, inputs, parts, numbers)
        else:
            rows[begin:end] = _rows(assembly, stored.storage, inputs, parts, numbers)
    return rows.reshape(-1).data


def _grouped(stored: StoredTensor, assembly: Assembly, read: Callable[[StoredTensor], memoryview]) -> Bytes:
    """Return rows that have others between them in their tensor, of which none is assembled for these."""
    (part,), count = assembly.parts, stored.shape[0]
    if part.assembly is None:
        places = assembly.first + np.arange(count)
        taken: Bytes = _bytes(part, read)[places // assembly.height * assembly.group + places % assembly.height]
        return taken
    rows, done = np.empty((count, stored.nbytes // count), np.uint8), 0
    while done < count:
        run, place = divmod(assembly.first + done, assembly.height)
        size = min(assembly.height - place, count - done)
        rows[done : done + size] = _bytes(part.rows(run * assembly.group + place, size), read)
        done += size
    return rows


def _bytes(part: StoredTensor, read: Callable[[StoredTensor], memoryview]) -> Bytes:
    return np.frombuffer(read(part), dtype=np.uint8).reshape(part.shape[0], -1)


def _placed(stored: StoredTensor, assembly: Assembly, read: Callable[[StoredTensor], memoryview]) -> NDArray[Any]:
    """Return rows of heads, of which each is a row of the same head in the tensor, or zeros."""
    (part,) = assembly.parts
    return _rows_placed(_entries(part, read), assembly, stored.shape[0])


def _turned(stored: StoredTensor, assembly: Assembly, read: Callable[[StoredTensor], memoryview]) -> NDArray[Any]:
    """Return rows of heads, of which each is a column of the head's matrix in the tensor, or zeros."""
    (part,) = assembly.parts
    heads = _numbers(part, read).reshape(-1, stored.shape[1], assembly.group)
    return _rows_placed(heads.swapaxes(1, 2).reshape(-1, stored.shape[1]), assembly, stored.shape[0])


def _rows_placed(found: NDArray[Any], assembly: Assembly, count: int) -> NDArray[Any]:
    heads, places = _places(assembly, count)
    rows: NDArray[Any] = found[heads * assembly.group + np.maximum(places, 0)]
    rows[places < 0] = 0  # Blocks of zero bytes are zeros in every type.
    return rows


def _placed_columns(
    stored: StoredTensor, assembly: Assembly, read: Callable[[StoredTensor], memoryview]
) -> NDArray[Any]:
    """Return rows whose columns belong to heads, each a column or block of the same head in the tensor, or zeros."""
    (part,), (count, width) = assembly.parts, stored.shape
    in_blocks = part.storage == stored.storage and part.storage not in _TYPES
    size = BLOCKS[stored.storage].block if in_blocks else 1
    heads, places = _places(replace(assembly, first=0), width // size)
    taken = heads * assembly.group + np.maximum(places, 0)
    rows, step = np.empty((count, stored.nbytes // count), np.uint8), max(1, _VALUES_AT_ONCE // width)
    for begin in range(0, count, step):
        some = part.rows(assembly.first + begin, min(step, count - begin))
        found = _bytes(some, read) if in_blocks else _numbers(some, read)
        found = found.reshape(len(found), -1, BLOCKS[part.storage].bytes) if in_blocks else found
        columns: NDArray[Any] = found[:, taken]
        columns[:, places < 0] = 0
        rows[begin : begin + step] = np.ascontiguousarray(columns).reshape(len(columns), -1).view(np.uint8)
    return rows


def _spread(stored: StoredTensor, assembly: Assembly, read: Callable[[StoredTensor], memoryview]) -> NDArray[Any]:
    """Return rows that take one column each, or none; of the tensor only the type is theirs."""
    rows = np.zeros(stored.shape, _TYPES[stored.storage])
    _, places = _places(assembly, len(rows))
    taking = np.flatnonzero(places >= 0)
    rows[taking, places[taking]] = _BFLOAT16_ONE if stored.storage == "BF16" else 1
    return rows


_PLACING = {PLACED: _placed, PLACED_COLUMNS: _placed_columns, TURNED: _turned, SPREAD: _spread}


def _entries(part: StoredTensor, read: Callable[[StoredTensor], memoryview]) -> NDArray[Any]:
    """Return the rows of a tensor as its numbers, or as bytes where it has blocks."""
    return _array(part, read(part)) if part.storage in _TYPES else _bytes(part, read)


def _numbers(part: StoredTensor, read: Callable[[StoredTensor], memoryview]) -> NDArray[Any]:
    """Return the rows of a tensor as its numbers, or as float32 where it has blocks."""
    return _array(part, read(part)) if part.storage in _TYPES else dequantized(part, _bytes(part, read))


def _places(assembly: Assembly, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the head of each entry from the first on, and its place there."""
    heads, entries = np.divmod(assembly.first + np.arange(count), len(assembly.places))
    return heads, np.array(assembly.places, np.int64)[entries]


def _rows(assembly: Assembly, storage: str, inputs: int, parts: Parts, numbers: range) -> Bytes:
    kind = quantized_type(storage) or table_type(storage)
    assert kind is not None
    layout, groups = LAYOUTS[assembly.layout], _groups(inputs, assembly.group, kind)
    scaled = np.arange(numbers.start, numbers.stop) // assembly.height
    scales = _scales(assembly.parts[1], layout.scales(parts, scaled)) + np.float32(assembly.added)
    zeros = layout.zeros(parts, scaled, kind.bits)
    offsets = None
    if zeros is not None:
        _check_zeros(assembly.parts[2], kind, zeros)
        if kind.has_offsets:
            offsets = (scales * -zeros.astype(np.float32))[:, groups]
    codes = layout.codes(parts, numbers.start, numbers.stop, kind.bits)[:, : -(-inputs * kind.bits // 8)]
    if problem := layout.check(codes):
        raise assembly.parts[0].error(problem)
    return kind.joined(codes, scales[:, groups], offsets)


def _ordered(assembly: Assembly, inputs: int, parts: Parts, numbers: range) -> Bytes:
    """Return rows as float32 numbers, each input by the scale and zero point of its group."""
    layout, kind, groups = LAYOUTS[assembly.layout], quantized_type(assembly.ordered), parts[-1].astype(np.int64)
    assert kind is not None
    rows = np.arange(numbers.start, numbers.stop)
    zeros = layout.zeros(parts[:-1], rows, kind.bits)
    if zeros is not None:
        _check_zeros(assembly.parts[2], kind, zeros)
    codes = layout.codes(parts, numbers.start, numbers.stop, kind.bits)
    values = (codes if kind.bits == 8 else unpaired(codes, inputs))[:, :inputs].astype(np.float32)
    values -= np.float32(kind.centre) if zeros is None else zeros[:, groups].astype(np.float32)
    values *= _scales(assembly.parts[1], layout.scales(parts, rows))[:, groups]
    return values.view(np.uint8)


def _groups(inputs: int, stored: int, kind: RowType) -> NDArray[np.int64]:
    """Return for each scale of a row the index of the scale in the file, whose groups may be multiples of ours."""
    return np.arange(kind.scales(inputs)) * kind.group // (stored or inputs)


def _array(part: StoredTensor, data: memoryview) -> NDArray[Any]:
    if part.offset % 4:
        data = memoryview(bytes(data))
    return np.frombuffer(data, dtype=_TYPES[part.storage]).reshape(part.shape)


def _scales(part: StoredTensor, values: NDArray[Any]) -> Floats:
    if part.storage == "BF16":
        scales = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        scales = values.astype(np.float32)
    if not np.isfinite(scales).all():
        raise part.error("holds scales that are not finite")
    return scales


def _check_zeros(part: StoredTensor, kind: RowType, zeros: NDArray[np.int32]) -> None:
    most = (1 << kind.bits) - 1
    if zeros.max(initial=0) > most:
        raise part.error(f"holds the zero point {zeros.max()}; allowed: 0 to {most}")
    if not kind.has_offsets and (zeros != kind.zero).any():
        other = zeros[zeros != kind.zero][0]
        raise part.error(f"holds the zero point {other}, but by the config codes are symmetric around {kind.zero}")
