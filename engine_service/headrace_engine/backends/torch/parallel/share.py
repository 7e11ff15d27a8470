"""The share of a model's weights that a rank holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace_engine.backends import shares
from headrace_engine.models.adapters.adapter import Factors
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.weights import read_tensor

FEWEST = 16
"""Fewest outputs of a product: libraries sum those of less than 12 up in another order."""


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Some outputs of a matrix.

    Attributes:
        weight: [at least width, inputs], zeros beyond the rank's rows.
        width: outputs of the part, the same on all ranks; the last ones may be padding.
    """

    weight: Tensor
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.nbytes


@dataclass(frozen=True, slots=True)
class InputPart:
    """Some inputs of a matrix, [outputs, inputs of the part]: its products are to be added up over all ranks."""

    weight: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.nbytes


Weight = Tensor | OutputPart | InputPart


@dataclass(frozen=True)
class Share(shares.Share):
    """The share of one rank, as tensors."""

    unit: int = 32
    """The values that vectors of torch's gates take at once. Others round differently."""

    def read(self, info: TensorInfo, dtype: torch.dtype, device: torch.device) -> Weight:
        """Read the rank's part of a tensor, or all of it if it is not cut.

        Raises:
            BadModel: see `read_tensor`.
        """
        if self.is_added(info.name):
            whole = read_tensor(info, dtype, device)
            return whole if info.name.endswith("_bias") else self._inputs(info.name, whole)
        width = self.part(info.name, info.shape[0])
        if width is None:
            return read_tensor(info, dtype, device)
        part = self._rows(info, width, dtype, device)
        return OutputPart(part, width) if part.ndim > 1 else part

    def factors(self, name: str, factors: Factors, device: torch.device) -> tuple[Tensor, Tensor]:
        """Read the rank's part of an adapter's factors for a matrix, in float32: columns of a, or rows of b, or all.

        Raises:
            BadModel: see `read_tensor`.
        """
        a, width = read_tensor(factors.a, torch.float32, device), self.part(name, factors.b.shape[0])
        if width is not None:
            return a, self._rows(factors.b, width, torch.float32, device)
        return self._inputs(name, a).weight if self.is_added(name) else a, read_tensor(factors.b, torch.float32, device)

    def _rows(self, info: TensorInfo, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        total, *inner = info.shape
        first = min(self.rank * width, total)
        count = min(width, total - first)
        rows = width if not inner else max(width, FEWEST)
        part = torch.zeros(rows, *inner, dtype=dtype, device=device)
        if count:
            heads = info.interleaved_heads // self.size
            cut = replace(info, stored=info.stored.rows(first, count), interleaved_heads=heads)
            part[:count] = read_tensor(cut, dtype, device)
        return part

    def _inputs(self, name: str, whole: Tensor) -> InputPart:
        width = self.inputs(name, whole.shape[1])
        assert width is not None
        part = whole[:, self.rank * width : (self.rank + 1) * width]
        return InputPart(torch.nn.functional.pad(part, (0, width - part.shape[1])).contiguous())
