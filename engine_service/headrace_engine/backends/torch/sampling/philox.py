"""Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) on torch tensors.

Words are uint32 values in int64: the product of two may wrap around, but its 64 bits are correct.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return the four output words of each counter under each key; shapes broadcast. Counters are taken modulo 2³²."""
    c0, c1, c2, c3 = (word & _MASK for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and low words of the product."""
    product = word * factor
    return (product >> 32) & _MASK, product & _MASK


def seed_key(seeds: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the low and high words of uint64 seeds."""
    low = torch.tensor([seed & _MASK for seed in seeds], device=device)
    high = torch.tensor([seed >> 32 for seed in seeds], device=device)
    return low, high


def uniform(word: Tensor) -> Tensor:
    """Return (x + 0.5) · 2⁻³² of each word, exact in float64: above 0 and below 1."""
    return (word.double() + 0.5) * 2.0**-32
