"""Weights in codes: few rows multiply the codes themselves, for many the weights are written out as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.native.abi import Coded, CodedLimit, CodedLinear, CodedRows
from headrace_engine.native.coded import CodedMatrix

_ROOM_VALUES = 2**25
"""Weights that are written out at a time: enough for a product that keeps a large device busy."""
_FEWEST_OUTPUTS = 64


@dataclass(frozen=True, slots=True, eq=False)
class CodedWeight:
    """A matrix of codes on a device, or several with the same inputs, one below the other.

    Attributes:
        packed: how it is stored.
        data: its bytes.
        sizes: outputs of each of the matrices that it is made of.
    """

    packed: CodedMatrix
    data: Tensor
    sizes: Sequence[int]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.data.nbytes

    @property
    def outputs(self) -> int:
        """Its rows."""
        return self.packed.matrix.outputs

    @property
    def inputs(self) -> int:
        """Its columns."""
        return self.packed.matrix.inputs

    def struct(self) -> Coded:
        """What kernels take."""
        return self.packed.struct(self.data.data_ptr())


class CodedProducts:
    """Computes with weights in codes. The activations are bfloat16.

    Args:
        device: where they lie.
        weights: all weights that there are; those in codes count.
        most_rows: that multiply the codes themselves.
    """

    def __init__(self, device: Device, weights: Sequence[Any], most_rows: int = CodedLimit.CODED_ROWS) -> None:
        self._device = device
        self._most_rows = most_rows
        values = max((_room_values(weight) for weight in weights if isinstance(weight, CodedWeight)), default=0)
        self._room = torch.empty(values, dtype=torch.bfloat16, device=device.torch)

    @property
    def nbytes(self) -> int:
        """Bytes of the room on the device in which weights are written out."""
        return self._room.nbytes

    def rows(self, weight: CodedWeight, ids: Tensor) -> Tensor:
        """Rows of a matrix by their numbers, int32 [rows], as [rows, inputs]."""
        out = torch.empty(len(ids), weight.inputs, dtype=torch.bfloat16, device=ids.device)
        args = CodedRows(matrix=weight.struct(), ids=ids.data_ptr(), out=out.data_ptr(), rows=len(ids))
        self._device.launch("coded_rows", args)
        return out

    def linear(self, x: Tensor, weight: CodedWeight, bias: Tensor | None) -> Tensor:
        """The product x · weightᵀ + bias: [rows, outputs]."""
        out = torch.empty(len(x), weight.outputs, dtype=x.dtype, device=x.device)
        if len(x) <= self._most_rows:
            self._of_codes(x, weight, bias, out)
        else:
            self._of_numbers(x, weight, bias, out)
        return out

    def _of_codes(self, x: Tensor, weight: CodedWeight, bias: Tensor | None, out: Tensor) -> None:
        splits = weight.packed.splits(len(x), self._device.multiprocessors)
        shares = torch.empty(splits if splits > 1 else 0, *out.shape, dtype=torch.float32, device=x.device)
        args = CodedLinear(
            matrix=weight.struct(),
            x=x.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            out=out.data_ptr(),
            room=shares.data_ptr() if splits > 1 else None,
            rows=len(x),
            splits=splits,
        )
        self._device.launch("coded_linear", args)

    def _of_numbers(self, x: Tensor, weight: CodedWeight, bias: Tensor | None, out: Tensor) -> None:
        step = len(self._room) // weight.inputs
        for first in range(0, weight.outputs, step):
            last = min(first + step, weight.outputs)
            numbers = self._numbers(weight, first, last)
            if bias is None:
                torch.mm(x, numbers.T, out=out[:, first:last])
            else:
                torch.addmm(bias[first:last], x, numbers.T, out=out[:, first:last])

    def _numbers(self, weight: CodedWeight, first: int, last: int) -> Tensor:
        """Rows first to last − 1, until others are asked for."""
        numbers = self._room[: (last - first) * weight.inputs].view(last - first, weight.inputs)
        args = CodedRows(matrix=weight.struct(), out=numbers.data_ptr(), rows=last - first, first=first)
        self._device.launch("coded_rows", args)
        return numbers


def _room_values(weight: CodedWeight) -> int:
    fewest = min(_FEWEST_OUTPUTS, weight.outputs) * weight.inputs
    return max(fewest, min(_ROOM_VALUES, weight.outputs * weight.inputs))
