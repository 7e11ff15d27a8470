"""Weights quantized to eight bits with a scale per output, on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.weights.row_products import CodeProducts, QuantizedRows, RowQuantizedWeight
from headrace_engine.models.files import NOT_FINITE, TensorInfo
from headrace_engine.models.mapped import map_tensor
from headrace_engine.models.table_rows import E4M3, table_type
from headrace_engine.models.weights import half_by_half, read_tensor
from headrace_engine.native import Dtype, Matrix, MatrixRows
from headrace_engine.native.abi import RowCodes

SCALE_BYTES = 4
"""Bytes of the scale of an output."""


def int8_weight(parts: Sequence[tuple[Matrix, MatrixRows]], device: Device) -> RowQuantizedWeight:
    """Stack matrices quantized by the cpu backend with one scale per row."""
    codes = [(torch.from_numpy(rows.numbers) ^ matrix.zero).view(torch.int8) for matrix, rows in parts]
    scales = [torch.from_numpy(_stored_scales(matrix, rows)) for matrix, rows in parts]
    sizes = [len(part) for part in codes]
    whole, of_rows = (torch.cat(each).to(device.torch) for each in (codes, scales))
    return RowQuantizedWeight(whole, of_rows, sizes)


def _stored_scales(matrix: Matrix, rows: MatrixRows) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    assert rows.scales is not None
    scales = rows.scales.reshape(-1)
    return scales.astype(np.float16).astype(np.float32) if matrix.scales is Dtype.FLOAT16 else scales


def fp8_weight(infos: Sequence[TensorInfo], device: Device) -> RowQuantizedWeight:
    """Stack matrices of a model's files; all have the same inputs.

    What a file holds as such codes, with one scale for each output or for all of them, is taken code by code. The rest
    is quantized on the device.

    Raises:
        BadModel: a file has changed since it was opened, or a weight is not finite.
    """
    products = CodeProducts(device, RowCodes.FP8)
    parts = []
    for info in infos:
        if _holds_fp8_rows(info):
            parts.append(_stored_rows(info, device))
            continue
        part = products.quantize(read_tensor(info, torch.bfloat16, device.torch))
        if not bool(part.scales.isfinite().all()):
            raise info.stored.error(NOT_FINITE)
        parts.append(part)
    codes, scales = (_below([getattr(part, name) for part in parts]) for name in ("codes", "scales"))
    return RowQuantizedWeight(codes, scales, [len(part) for part in parts])


def _holds_fp8_rows(info: TensorInfo) -> bool:
    kind = table_type(info.stored.storage)
    return kind is not None and kind.table == E4M3 and not kind.group


def _stored_rows(info: TensorInfo, device: Device) -> QuantizedRows:
    outputs, inputs = info.shape
    data = torch.frombuffer(map_tensor(info.stored), dtype=torch.uint8)
    rows = half_by_half(data.view(outputs, inputs + SCALE_BYTES), info)
    codes, scales = rows[:, :inputs].contiguous(), rows[:, inputs:].contiguous().view(torch.float32)
    return QuantizedRows(codes.to(device.torch).view(torch.float8_e4m3fn), scales.squeeze(1).to(device.torch))


def _below(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat([part.view(torch.uint8) for part in parts])
    return joined.view(parts[0].dtype)
