"""Matrix products whose rows do not depend on their neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

ROW_TILE = 16
"""Rows of one product in float32; more would waste time on small batches, fewer on long prompts."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of x [rows, in] and the transpose of weight [out, in], plus bias [out].

    Libraries add in another order for another number of rows. In float32, where the same sequence must give the same
    numbers in any batch, every product therefore has ROW_TILE rows; the last is filled up with zeros.
    That the place in a tile does not matter either is a property of the libraries, which the tests hold.
    """
    product = _tiled(x, weight) if x.dtype == torch.float32 else x @ weight.T
    return product if bias is None else product + bias


def _tiled(x: Tensor, weight: Tensor) -> Tensor:
    rows = len(x)
    filled = torch.nn.functional.pad(x, (0, 0, 0, -rows % ROW_TILE))
    out = x.new_empty(len(filled), len(weight))
    for first in range(0, len(filled), ROW_TILE):
        torch.mm(filled[first : first + ROW_TILE], weight.T, out=out[first : first + ROW_TILE])
    return out[:rows]
