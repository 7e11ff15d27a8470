"""Hadamard rotation of heads, bit-identical to csrc/common/hadamard.h."""

from __future__ import annotations

import torch
from torch import Tensor


def hadamard_block(head_dim: int) -> int:
    """Number of entries rotated together: the largest power of two that divides head_dim."""
    return head_dim & -head_dim


def hadamard(heads: Tensor) -> Tensor:
    """Rotate heads [.., head_dim] by an unnormalized Hadamard matrix; doing it twice multiplies by `hadamard_block`."""
    block, apart = hadamard_block(heads.shape[-1]), 1
    while apart < block:
        first, second = heads.unflatten(-1, (-1, 2, apart)).unbind(-2)
        heads = torch.stack([first + second, first - second], -2).flatten(-3)
        apart *= 2
    return heads
