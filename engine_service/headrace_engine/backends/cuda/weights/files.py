"""Quantized weights on a device, as contents of packed-weights files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.backends.cuda.device.device import Device
from headrace_engine.backends.cuda.weights.quantized import QuantizedWeight
from headrace_engine.backends.cuda.weights.row_packing import SCALE_BYTES
from headrace_engine.backends.cuda.weights.row_products import RowQuantizedWeight
from headrace_engine.backends.weight_file import matrix_fields, matrix_of
from headrace_engine.native import Dtype
from headrace_engine.native.abi import RowCodes
from headrace_engine.native.quantized import LAYOUT, QuantizedMatrix

_BETWEEN = " "
"""Separates the names of stacked matrices, which form one matrix of a file."""


def layout_of(rows: RowCodes | None) -> str:
    """Return the layout of matrices, as part of the key of their file."""
    return f"device {LAYOUT} rows {rows.name if rows else 'none'}"


class DeviceContents:
    """Implements weight_file.Contents. Few weights at a time are in host memory.

    Args:
        device: the device that holds the weights.
        weights: by canonical name, to be written; empty, to be filled.

    Attributes:
        weights: by canonical name.
    """

    def __init__(self, device: Device, weights: Mapping[str, QuantizedWeight | RowQuantizedWeight]) -> None:
        self.weights = dict(weights)
        self._device = device
        self._described: dict[str, Mapping[str, Any]] = {}

    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """See Contents."""
        names: dict[int, list[str]] = {}
        for name, weight in self.weights.items():
            names.setdefault(id(weight), []).append(name)
        return {_BETWEEN.join(each): _description(self.weights[each[0]]) for each in names.values()}

    def pieces(self, name: str) -> Iterator[NDArray[np.uint8]]:
        """See Contents."""
        weight = self.weights[name.split(_BETWEEN)[0]]
        tensors = [weight.data] if isinstance(weight, QuantizedWeight) else [weight.codes, weight.scales]
        for tensor in tensors:
            yield tensor.view(torch.uint8).flatten().cpu().numpy()

    def add(self, name: str, described: Mapping[str, Any]) -> int:
        """See Contents."""
        self._described[name] = described
        if "matrix" in described:
            return self._packed(described).nbytes
        outputs, inputs = sum(described["sizes"]), int(described["inputs"])
        return int(outputs * (inputs + SCALE_BYTES))

    def fill(self, name: str, data: memoryview) -> None:
        """See Contents."""
        # A copy: the file that `data` is a view of is unmapped, and a device that is the host would keep the view.
        host = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
        weight = self._weight(self._described[name], host)
        for each in name.split(_BETWEEN):
            self.weights[each] = weight

    def clear(self) -> None:
        """See Contents."""
        self.weights.clear()
        self._described.clear()

    def _weight(self, described: Mapping[str, Any], data: Tensor) -> QuantizedWeight | RowQuantizedWeight:
        """Copy a weight from the host; that is all, since the stream of this thread is not that of the model."""
        sizes, device = described["sizes"], self._device.torch
        if "matrix" in described:
            return QuantizedWeight(self._packed(described), data.to(device), sizes)
        count = sum(sizes) * described["inputs"]
        codes, scales = data[:count].view(torch.int8).view(-1, described["inputs"]), data[count:].clone()
        return RowQuantizedWeight(codes.to(device), scales.view(torch.float32).to(device), sizes)

    def _packed(self, described: Mapping[str, Any]) -> QuantizedMatrix:
        return QuantizedMatrix(self._device.native, matrix_of(described["matrix"]), Dtype.BFLOAT16)


def _description(weight: QuantizedWeight | RowQuantizedWeight) -> dict[str, Any]:
    if isinstance(weight, QuantizedWeight):
        return {"matrix": matrix_fields(weight.packed.matrix), "sizes": weight.sizes}
    return {"inputs": weight.codes.shape[1], "sizes": weight.sizes}
