"""The share of a model's weights that a rank holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace_engine.config import TensorParallelMode
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.models.weights import read_tensor

_UNIT = 32
"""Outputs by which parts are cut: the values that vectors of torch's gates take at once. Others round differently."""
_FEWEST = 16
"""Fewest outputs of a product: libraries sum those of less than 12 up in another order."""

_HEADS = frozenset({"q", "k", "v", "sinks"})
_LAST = frozenset({"o", "down", "shared_down"})
"""The last matrices of attention and MLP, whose inputs are parts. Those of single experts have few rows each."""
_OUTPUTS = frozenset({"o", "gate", "up", "down", "shared_gate", "shared_up", "shared_down", "embed", "head"})


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


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one rank.

    Attributes:
        rank: its number.
        size: number of ranks, which divides the number of KV heads.
    """

    rank: int
    size: int
    mode: TensorParallelMode

    def heads(self, spec: DecoderSpec) -> DecoderSpec:
        """Return the spec with the rank's heads alone."""
        return replace(spec, num_heads=spec.num_heads // self.size, num_kv_heads=spec.num_kv_heads // self.size)

    def width(self, total: int) -> int:
        """Return the width of the parts of so many outputs: too few to be cut by units are cut one by one."""
        unit = _UNIT if total >= _UNIT * self.size else 1
        return -(-total // (self.size * unit)) * unit

    def read(self, info: TensorInfo, dtype: torch.dtype, device: torch.device) -> Weight:
        """Read the rank's part of a tensor, or all of it if it is not cut.

        Raises:
            BadModel: see `read_tensor`.
        """
        name = info.name.rpartition(".")[2]
        stem, is_bias = name.removesuffix("_bias"), name.endswith("_bias")
        if stem in _HEADS:
            return self._outputs(info, info.shape[0] // self.size, dtype, device)
        if stem in _LAST and ".experts." not in info.name and self.mode is TensorParallelMode.REDUCED:
            whole = read_tensor(info, dtype, device)
            return whole if is_bias else self._inputs(whole)
        if stem in _OUTPUTS:
            return self._outputs(info, self.width(info.shape[0]), dtype, device)
        return read_tensor(info, dtype, device)

    def _outputs(self, info: TensorInfo, width: int, dtype: torch.dtype, device: torch.device) -> Weight:
        total, *inner = info.shape
        first = min(self.rank * width, total)
        count = min(width, total - first)
        rows = width if not inner else max(width, _FEWEST)
        part = torch.zeros(rows, *inner, dtype=dtype, device=device)
        if count:
            heads = info.interleaved_heads // self.size
            cut = replace(info, stored=info.stored.rows(first, count), interleaved_heads=heads)
            part[:count] = read_tensor(cut, dtype, device)
        return OutputPart(part, width) if inner else part

    def _inputs(self, whole: Tensor) -> InputPart:
        width = self.width(whole.shape[1])
        part = whole[:, self.rank * width : (self.rank + 1) * width]
        return InputPart(torch.nn.functional.pad(part, (0, width - part.shape[1])).contiguous())
