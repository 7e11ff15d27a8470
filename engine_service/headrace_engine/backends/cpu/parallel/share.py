"""The share of a model's weights that a rank holds, as orders of rows, and as ranges of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace_engine.backends.cpu.weights.rows import Order, Orders, orders_of
from headrace_engine.backends.shares import Share
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import PackedMatrix


@dataclass(frozen=True, slots=True)
class InputPart:
    """Some inputs of a matrix: its products are to be added up over all ranks."""

    weight: PackedMatrix


@dataclass(frozen=True)
class CpuShare(Share):
    """What one rank holds: rows of matrices, and entries of their biases; or columns of matrices."""

    unit: int = 64
    """The outputs of a tile of a packed matrix, or a multiple, by which groups of inputs are not cut either."""

    def columns(self, name: str, total: int) -> slice | None:
        """Return the rank's columns of all of a matrix; those beyond the end are padding. None: it holds all."""
        width = self.inputs(name, total)
        return None if width is None else slice(self.rank * width, (self.rank + 1) * width)

    def marked(self, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the weights, of which those whose inputs are cut are InputParts."""
        return {
            name: InputPart(weight) if isinstance(weight, PackedMatrix) and self.is_added(name) else weight
            for name, weight in weights.items()
        }

    def rows(self, info: TensorInfo, total: int) -> Order | None:
        """Return the rank's rows of all rows of a tensor; −1: padding. None: it holds all."""
        width = self.part(info.name, total)
        if width is None:
            return None
        rows = np.arange(self.rank * width, (self.rank + 1) * width)
        return np.where(rows < total, rows, -1)

    def orders(self, info: TensorInfo, spec: DecoderSpec) -> Orders:
        """Return the orders of `orders_of`, with the rank's rows alone."""
        whole = orders_of(info, spec)
        rows = self.rows(info, info.stored.shape[0] if whole.rows is None else len(whole.rows))
        if rows is None:
            return whole
        return replace(whole, rows=rows if whole.rows is None else np.where(rows < 0, -1, whole.rows[rows]))
