"""Matrix products whose rows do not depend on other rows."""

from __future__ import annotations

import torch
from torch import Tensor

ROW_TILE = 16
"""Rows per product in float32: more would waste time on small batches, fewer on long prompts."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the product of x [rows, in] and the transpose of weight [out, in], plus bias [out], in the weight's type.

    The order of a library's summation depends on the number of rows. In float32, where a sequence must give the same
    bits in any batch, every product therefore has ROW_TILE rows, the last one padded with zeros. Results do not depend
    on the position within a tile either: a property of the libraries that tests verify.
    """
    x = x.to(weight.dtype)
    product = _tiled(x, weight) if x.dtype == torch.float32 else x @ weight.T
    return product if bias is None else product + bias


def _tiled(x: Tensor, weight: Tensor) -> Tensor:
    rows = len(x)
    filled = torch.nn.functional.pad(x, (0, 0, 0, -rows % ROW_TILE))
    out = x.new_empty(len(filled), len(weight))
    for first in range(0, len(filled), ROW_TILE):
        torch.mm(filled[first : first + ROW_TILE], weight.T, out=out[first : first + ROW_TILE])
    return out[:rows]
