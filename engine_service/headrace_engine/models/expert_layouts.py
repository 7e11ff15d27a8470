"""Layouts of tensors that hold all experts of a layer, of which one is made into a matrix or a vector of its own.

Each is a function that returns some rows of the result, those that a slice picks, in its storage type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace_engine.models.files import StoredTensor

_NO_SCALE = 255
"""The scale that is no number; others are powers of two."""

Rows = NDArray[Any]
Parts = Sequence[NDArray[Any]]


def _transposed(stored: Sequence[StoredTensor], parts: Parts, picked: slice) -> Rows:
    """Numbers [1, inputs, outputs]."""
    return parts[0][0, :, picked].T


def _vector(stored: Sequence[StoredTensor], parts: Parts, picked: slice) -> Rows:
    """Numbers [1, outputs]."""
    return parts[0][0, picked]


def _mxfp4(stored: Sequence[StoredTensor], parts: Parts, picked: slice) -> Rows:
    """Codes [1, outputs, blocks, 16], two neighbours in a byte, the first in its lower half, and scales.

    The result has blocks as GGUF files do: halves of a byte are a number of the first half of a block and one of the
    second.
    """
    codes, scales = parts[0][0, picked], parts[1][0, picked]
    if (scales == _NO_SCALE).any():
        raise stored[1].error("holds scales that are no numbers")
    numbers = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=-1).reshape(*codes.shape[:-1], 2, 16)
    halves = numbers[..., 0, :] | numbers[..., 1, :] << np.uint8(4)
    return np.concatenate([scales[..., None], halves], axis=-1)


EXPERT_LAYOUTS: Mapping[str, Callable[[Sequence[StoredTensor], Parts, slice], Rows]] = {
    "TRANSPOSED": _transposed,
    "VECTOR": _vector,
    "MXFP4": _mxfp4,
}
"""Layouts by Assembly.layout."""
