"""Heads whose entries are spread over one another, as csrc/common/hadamard.h says, to the same bits."""

from __future__ import annotations

import torch
from torch import Tensor


def spread_block(head_dim: int) -> int:
    """Entries that are spread together: the largest power of two that divides a head's."""
    return head_dim & -head_dim


def spread(heads: Tensor) -> Tensor:
    """Sums of entries with signs instead of entries, [.., head_dim]; twice, it is the entries times a block's."""
    block, apart = spread_block(heads.shape[-1]), 1
    while apart < block:
        first, second = heads.unflatten(-1, (-1, 2, apart)).unbind(-2)
        heads = torch.stack([first + second, first - second], -2).flatten(-3)
        apart *= 2
    return heads
