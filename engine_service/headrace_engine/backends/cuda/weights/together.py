"""The matrix that several weights are parts of."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headrace_engine.backends.cuda.weights.fused import spanning
from headrace_engine.backends.cuda.weights.quantized import QuantizedWeight
from headrace_engine.backends.cuda.weights.row_products import RowQuantizedWeight

Weight = Tensor | QuantizedWeight | RowQuantizedWeight


def together(weights: Sequence[Weight]) -> tuple[Weight, Sequence[int]] | None:
    """Return the matrix that all of these are parts of, and the outputs of each; None: there is no such matrix."""
    first = weights[0]
    if isinstance(first, QuantizedWeight | RowQuantizedWeight):
        return (first, first.sizes) if all(weight is first for weight in weights) else None
    numbers = [weight for weight in weights if isinstance(weight, Tensor)]
    return (spanning(numbers), [len(part) for part in numbers]) if len(numbers) == len(weights) else None
