"""Reading weights: from the bytes in a file to tensors on a device, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from headrace_engine.model_types import ModelPhase
from headrace_engine.models.blocks import dequantized
from headrace_engine.models.files import BEYOND_FLOAT16, ModelFiles, StoredTensor, TensorInfo
from headrace_engine.models.mapped import map_tensor

Weight = TypeVar("Weight")

Progress = Callable[[ModelPhase, int, int | None], None]
"""Called with the phase, the bytes done, and the total bytes."""

PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Storage types of unquantized values."""
_CHUNK_VALUES = 8 * 2**20
"""Number of values dequantized at a time, so that a large table needs no second copy in float32."""


def load_weights(
    files: ModelFiles, dtype: torch.dtype, device: torch.device, progress: Progress
) -> dict[str, torch.Tensor]:
    """Read all weights, by canonical name, in `dtype` on `device`. A tied head has no entry of its own.

    Raises:
        BadModel: a file has changed since it was opened, or values do not fit into `dtype`.
    """
    return read_all(files, progress, lambda info: read_tensor(info, dtype, device))


def read_all(files: ModelFiles, progress: Progress, read: Callable[[TensorInfo], Weight]) -> dict[str, Weight]:
    """Read every tensor in the order of the files; return what `read` returns of each, by canonical name."""
    weights: dict[str, Weight] = {}
    done = 0
    progress(ModelPhase.LOADING, done, files.weight_bytes)
    for info in sorted(files.tensors.values(), key=lambda info: (info.stored.file, info.stored.offset)):
        weights[info.name] = read(info)
        done += info.stored.file_bytes
        progress(ModelPhase.LOADING, done, files.weight_bytes)
    return weights


def read_tensor(info: TensorInfo, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Read one tensor of shape info.shape: dequantized, its rows in order, owning its memory; exact ones in float32.

    Raises:
        BadModel: the file has changed since it was opened, or values do not fit into `dtype`.
    """
    stored, dtype = info.stored, torch.float32 if info.exact else dtype
    data = map_tensor(stored)
    result = torch.empty(stored.shape, dtype=torch.float32 if info.shift else dtype, device=device)
    if stored.storage in PLAIN:
        result.copy_(_plain(stored, data))
    else:
        _unpack(stored, data, result)
    if dtype is torch.float16 and not torch.isfinite(result).all():
        raise stored.error(BEYOND_FLOAT16)
    if info.shift:
        result = (result + info.shift).to(dtype)
    return half_by_half(result, info)


def _plain(stored: StoredTensor, data: memoryview) -> torch.Tensor:
    value_type = PLAIN[stored.storage]
    if not stored.elements:
        return torch.empty(stored.shape, dtype=value_type)
    buffer = bytearray(data) if stored.offset % value_type.itemsize else data
    return torch.frombuffer(buffer, dtype=value_type).view(stored.shape)


def _unpack(stored: StoredTensor, data: memoryview, result: torch.Tensor) -> None:
    """Dequantize blocks of a GGUF file into `result`, a few rows at a time."""
    import numpy as np

    columns = stored.shape[-1]
    rows = result.view(-1, columns)
    packed = np.frombuffer(data, dtype=np.uint8).reshape(rows.shape[0], -1)
    step = max(1, _CHUNK_VALUES // columns)
    for begin in range(0, rows.shape[0], step):
        values = dequantized(stored, packed[begin : begin + step])
        rows[begin : begin + step].copy_(torch.from_numpy(values))


def half_by_half(rows: torch.Tensor, info: TensorInfo) -> torch.Tensor:
    """Reorder the rotating rows of each head from adjacent rotary pairs to first halves, then second halves."""
    if not info.interleaved_heads:
        return rows
    heads = rows.unflatten(0, (info.interleaved_heads, -1))
    pairs = heads[:, : info.rotary_dim].unflatten(1, (-1, 2))
    return torch.cat((pairs.transpose(1, 2).flatten(1, 2), heads[:, info.rotary_dim :]), 1).reshape(rows.shape)
