"""Products with quantized weights: few rows multiply the codes; for many, weights are dequantized first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.native.abi import Quantized, QuantizedLimit, QuantizedLinear, UnpackRows
from headrace_engine.native.quantized import QuantizedMatrix

_SCRATCH_VALUES = 2**25
"""Maximum number of weights dequantized at a time: enough for a product that keeps a large device busy."""
_FEWEST_OUTPUTS = 64


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A quantized matrix on a device, or several with the same inputs, stacked by outputs.

    Attributes:
        packed: its storage.
        data: its bytes.
        sizes: outputs of each of the stacked matrices.
    """

    packed: QuantizedMatrix
    data: Tensor
    sizes: Sequence[int]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.data.nbytes

    @property
    def outputs(self) -> int:
        """Number of rows."""
        return self.packed.matrix.outputs

    @property
    def inputs(self) -> int:
        """Number of columns."""
        return self.packed.matrix.inputs

    def struct(self) -> Quantized:
        """The parameters that kernels take."""
        return self.packed.struct(self.data.data_ptr())


class QuantizedProducts:
    """Computes with quantized weights and bfloat16 activations. The scratch buffer is shared by all weights.

    Args:
        device: the device that holds the weights.
        weights: all weights of the model; the scratch buffer is sized for the quantized ones.
        max_rows: maximum rows that multiply the codes; above, weights are dequantized.
    """

    def __init__(self, device: Device, weights: Sequence[Any], max_rows: int = QuantizedLimit.QUANTIZED_ROWS) -> None:
        self._device = device
        self._max_rows = max_rows
        values = max((_scratch_values(weight) for weight in weights if isinstance(weight, QuantizedWeight)), default=0)
        self._scratch = torch.empty(values, dtype=torch.bfloat16, device=device.torch)

    @property
    def nbytes(self) -> int:
        """Bytes of the scratch buffer for dequantized weights on the device."""
        return self._scratch.nbytes

    def rows(self, weight: QuantizedWeight, ids: Tensor) -> Tensor:
        """Return rows by their indices, int32 [rows], as bfloat16 [rows, inputs]."""
        out = torch.empty(len(ids), weight.inputs, dtype=torch.bfloat16, device=ids.device)
        args = UnpackRows(matrix=weight.struct(), ids=ids.data_ptr(), out=out.data_ptr(), rows=len(ids))
        self._device.launch("unpack_rows", args)
        return out

    def linear(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        """Return x · weightᵀ + bias: [rows, outputs]."""
        out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
        if len(x) <= self._max_rows:
            self._multiply_codes(x, weight, bias, out)
        else:
            self._multiply_dequantized(x, weight, bias, out)
        return out

    def _multiply_codes(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, out: Tensor) -> None:
        splits = weight.packed.splits(len(x), self._device.multiprocessors)
        shares = torch.empty(splits if splits > 1 else 0, *out.shape, dtype=torch.float32, device=x.device)
        args = QuantizedLinear(
            matrix=weight.struct(),
            x=x.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            scratch=shares.data_ptr() if splits > 1 else None,
            rows=len(x),
            splits=splits,
        )
        self._device.launch("quantized_linear", args)

    def _multiply_dequantized(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None, out: Tensor) -> None:
        step = len(self._scratch) // weight.inputs
        for first in range(0, weight.outputs, step):
            last = min(first + step, weight.outputs)
            numbers = self._dequantized(weight, first, last)
            if bias is None:
                torch.mm(x, numbers.T, out=out[:, first:last])
            else:
                torch.addmm(bias[first:last], x, numbers.T, out=out[:, first:last])

    def _dequantized(self, weight: QuantizedWeight, first: int, last: int) -> Tensor:
        """Return rows first to last − 1, bfloat16, in the scratch buffer: valid until the next call."""
        # The device works in order, so the product before has read the buffer when this overwrites it.
        numbers = self._scratch[: (last - first) * weight.inputs].view(last - first, weight.inputs)
        args = UnpackRows(matrix=weight.struct(), out=numbers.data_ptr(), rows=last - first, first=first)
        self._device.launch("unpack_rows", args)
        return numbers


def _scratch_values(weight: QuantizedWeight) -> int:
    fewest = min(_FEWEST_OUTPUTS, weight.outputs) * weight.inputs
    return max(fewest, min(_SCRATCH_VALUES, weight.outputs * weight.inputs))
