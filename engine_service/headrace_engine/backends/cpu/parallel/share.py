"""The share of a model's weights that a rank holds, as orders of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace_engine.backends.cpu.weights.rows import Order, Orders, orders_of
from headrace_engine.backends.shares import Share
from headrace_engine.models.files import TensorInfo
from headrace_engine.models.spec import DecoderSpec


class CpuShare(Share):
    """What one rank holds: rows of matrices, and entries of their biases."""

    unit = 64
    """The outputs of a tile of a packed matrix."""

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
