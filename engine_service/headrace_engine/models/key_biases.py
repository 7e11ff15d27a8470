"""Detection of key biases that are too large for keys quantized to four bits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace_engine.models.files import ModelFiles, StoredTensor
from headrace_engine.models.mapped import map_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_FOR_UINT4 = 4.0
"""Root mean square of a head's key bias above which a warning is given.

A bias is the same in every key, up to its rotation, yet uses up the range of the codes: with four bits, a head and its
bias share one scale. In a four-layer Qwen2 with heads of 64 entries, keys that differ by 1.5 and this bias in the first
and the last layer, the mean error of the log-probabilities of a prompt is

    bias     0     0.6    1.3    2.5    5      10     20     40     62
    UINT4    0.39  0.42   0.48   0.51   0.80   0.98   1.09   1.20   1.20
    INT8     0.03  0.02   0.03   0.04   0.06   0.11   0.14   0.25   0.31

Subtracting one constant from all stored keys would leave the weights of attention as they are, but helps only where
few rotations have the bias: with the mean of the rotated bias (62, UINT4, 512 ids) the error is 0.08 instead of 1.11
where the slowest quarter of them has it, and 1.15 instead of 1.40 where all have. Adding the bias where keys are read
would take every reader a second product for each query and key.
"""

_NAME = re.compile(r"layers\.(\d+)\.k_bias")
_MOST_NAMED = 4


def large_key_biases(files: ModelFiles) -> str:
    """Return a warning naming the layers whose key bias is too large for four bits; "" if there are none.

    Raises:
        BadModel: a file has changed since it was opened.
    """
    found = [(layer, size) for layer, size in sorted(_sizes(files)) if size > LARGEST_FOR_UINT4]
    if not found:
        return ""
    named = ", ".join(str(layer) for layer, _ in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return (
        f"is UINT4, and keys of this model have a large constant bias (layers {named}{more}: up to "
        f"{max(size for _, size in found):.3g}; four bits keep their content up to {LARGEST_FOR_UINT4:g}): "
        "answers will be worse than UINT4 makes them elsewhere; INT8 keeps it"
    )


def _sizes(files: ModelFiles) -> Iterator[tuple[int, float]]:
    """Yield each layer and the largest root mean square of its heads' biases."""
    import numpy as np

    for name, info in files.tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        heads = _values(info.stored).astype(np.float64).reshape(-1, files.spec.head_dim)
        yield int(match[1]), float(np.sqrt(np.square(heads).mean(axis=1)).max())


def _values(stored: StoredTensor) -> NDArray[Any]:
    """Return the tensor's values; zeros for types that biases never have."""
    import numpy as np

    data = map_tensor(stored)
    if stored.storage == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    types = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    if stored.storage not in types:
        return np.zeros(stored.elements)
    return np.frombuffer(data, dtype=types[stored.storage])
