"""Products of 8-bit quantized rows, with a scale per row, and weights of the same type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.native import Dtype
from headrace_engine.native.abi import QuantizeRows, RowCodes, ScaledSums

MULTIPLE = 16
"""Outputs and inputs of torch's 8-bit products are multiples of this."""

CODE_TYPES = {RowCodes.INT8: torch.int8, RowCodes.FP8: torch.float8_e4m3fn}
MAX_CODE = {RowCodes.INT8: 127.0, RowCodes.FP8: 448.0}
"""Maximum magnitude of a code."""

_FEWEST_ROWS, _ROW_MULTIPLE = 24, 8
"""Constraint of torch's integer products: more than 16 rows, and a multiple of 8."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Quantized rows of activations: number = code · scale of its row.

    Attributes:
        codes: int8 or e4m3, [padded rows, width]; rows beyond the scales are padding.
        scales: float32 [rows].
    """

    codes: Tensor
    scales: Tensor

    def __len__(self) -> int:
        return len(self.scales)


@dataclass(frozen=True, slots=True, eq=False)
class RowQuantizedWeight:
    """A matrix quantized with a scale per output, or several with the same inputs, stacked by outputs.

    Attributes:
        codes: int8 or e4m3, [outputs, inputs].
        scales: float32 [outputs].
        sizes: outputs of each of the stacked matrices.
    """

    codes: Tensor
    scales: Tensor
    sizes: Sequence[int]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.codes.nbytes + self.scales.nbytes


class RowProducts(Protocol):
    """Quantizes rows, and multiplies them. Numbers are bfloat16.

    Attributes:
        kind: type of all codes.
    """

    kind: RowCodes

    def quantize(self, x: Tensor) -> QuantizedRows:
        """Quantize x, bfloat16 [rows, width]."""
        ...

    def linear(self, x: QuantizedRows, weight: RowQuantizedWeight, bias: Tensor | None) -> Tensor:
        """Return x · weightᵀ + bias: [rows, outputs]."""
        ...


class CodeProducts:
    """Quantizes by kernels, and multiplies by torch.

    Args:
        device: the device that holds rows and weights.
        kind: type of all codes.
    """

    def __init__(self, device: Device, kind: RowCodes) -> None:
        self.kind = kind
        self._device = device

    def scratch(self, rows: int, width: int) -> QuantizedRows:
        """Return uninitialized QuantizedRows for a kernel to fill."""
        filled = rows
        if self.kind is RowCodes.INT8:
            filled = max(_FEWEST_ROWS, -(-rows // _ROW_MULTIPLE) * _ROW_MULTIPLE)
        codes = torch.empty(filled, width, dtype=CODE_TYPES[self.kind], device=self._device.torch)
        return QuantizedRows(codes, torch.empty(rows, dtype=torch.float32, device=self._device.torch))

    def quantize(self, x: Tensor) -> QuantizedRows:
        """See RowProducts."""
        out = self.scratch(*x.shape)
        args = QuantizeRows(
            x=x.data_ptr(),
            out=out.codes.data_ptr(),
            scales=out.scales.data_ptr(),
            rows=x.shape[0],
            width=x.shape[1],
            dtype=Dtype.BFLOAT16,
            codes=self.kind,
        )
        self._device.launch("quantize_rows", args)
        return out

    def linear(self, x: QuantizedRows, weight: RowQuantizedWeight, bias: Tensor | None) -> Tensor:
        """See RowProducts."""
        if self.kind is RowCodes.INT8:
            return self._of_integers(x, weight, bias)
        scales = x.scales.unsqueeze(1), weight.scales.unsqueeze(0)
        return torch._scaled_mm(x.codes, weight.codes.T, *scales, bias=bias, out_dtype=torch.bfloat16)

    def _of_integers(self, x: QuantizedRows, weight: RowQuantizedWeight, bias: Tensor | None) -> Tensor:
        sums = torch._int_mm(x.codes, weight.codes.T)
        out = torch.empty(len(x), sums.shape[1], dtype=torch.bfloat16, device=sums.device)
        args = ScaledSums(
            sums=sums.data_ptr(),
            row_scales=x.scales.data_ptr(),
            scales=weight.scales.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            rows=len(x),
            width=sums.shape[1],
            dtype=Dtype.BFLOAT16,
        )
        self._device.launch("scaled_sums", args)
        return out


class PlainProducts:
    """CodeProducts in basic torch operators, to find out whether quantized products cause a wrong result.

    Args:
        kind: type of all codes.
    """

    def __init__(self, kind: RowCodes) -> None:
        self.kind = kind

    def quantize(self, x: Tensor) -> QuantizedRows:
        """See RowProducts."""
        numbers, largest = x.float(), MAX_CODE[self.kind]
        scales = numbers.abs().amax(1, keepdim=True) / largest
        codes = numbers / torch.where(scales > 0, scales, 1)
        if self.kind is RowCodes.INT8:
            codes = codes.round()
        return QuantizedRows(codes.to(CODE_TYPES[self.kind]), scales.squeeze(1))

    def linear(self, x: QuantizedRows, weight: RowQuantizedWeight, bias: Tensor | None) -> Tensor:
        """See RowProducts."""
        numbers = (x.codes.float() @ weight.codes.float().T) * x.scales.unsqueeze(1) * weight.scales
        return (numbers if bias is None else numbers + bias.float()).bfloat16()
