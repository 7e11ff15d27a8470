"""Weights quantized to eight bits with a scale per output, on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.weights.row_products import CodeProducts, RowQuantizedWeight
from headrace_engine.models.files import NOT_FINITE, TensorInfo
from headrace_engine.models.weights import read_tensor
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
    """Quantize matrices of a model's files on the device, and stack them; all have the same inputs.

    Raises:
        BadModel: a file has changed since it was opened, or a weight is not finite.
    """
    products = CodeProducts(device, RowCodes.FP8)
    parts = []
    for info in infos:
        part = products.quantize(read_tensor(info, torch.bfloat16, device.torch))
        if not bool(part.scales.isfinite().all()):
            raise info.stored.error(NOT_FINITE)
        parts.append(part)
    codes, scales = (_below([getattr(part, name) for part in parts]) for name in ("codes", "scales"))
    return RowQuantizedWeight(codes, scales, [len(part) for part in parts])


def _below(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    joined = torch.cat([part.view(torch.uint8) for part in parts])
    return joined.view(parts[0].dtype)
