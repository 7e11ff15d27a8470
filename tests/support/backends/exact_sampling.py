"""Exact sampling probabilities: the cuts in float64, one token after the other, and the tolerance of sampled shares."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

COMBINATIONS = [
    dict(zip(("temperature", "top_k", "top_p", "min_p"), values, strict=True))
    for values in product((0.6, 1.0, 2.5), (0, 4), (0.8, 1.0), (0.0, 0.1))
]
"""Every cut with every other."""

DRAWS = 10_000
FARTHEST = 0.028
"""Maximum total variation between the shares of DRAWS samples of 12 ids and their probabilities. Its mean is at most
sqrt(ids / (2 pi draws)), 0.014; this is twice as much."""


def exact_probabilities(
    logits: ArrayLike, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Return the probability of each id after the cuts."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-weights)
    if top_k:
        weights[weights < weights[order[min(top_k, len(order)) - 1]]] = 0
    if top_p < 1:
        mass = 0.0
        for last in order:
            mass += weights[last] / weights.sum()
            if mass >= top_p:
                break
        weights[weights < weights[last]] = 0
    weights[weights < min_p * weights.max()] = 0
    return weights / weights.sum()


def assert_drawn_as_often(ids: ArrayLike, exact: NDArray[np.float64]) -> None:
    """Assert that DRAWS sampled ids follow their probabilities, and that no id of probability 0 was sampled."""
    shares = np.bincount(np.asarray(ids), minlength=len(exact)) / DRAWS
    assert set(np.flatnonzero(shares)) <= set(np.flatnonzero(exact))
    assert abs(shares - exact).sum() / 2 < FARTHEST


def philox_on_integers(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the words of Philox4x32-10, computed with integers that do not overflow."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3
