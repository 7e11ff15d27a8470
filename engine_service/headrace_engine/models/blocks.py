"""Dequantize blocks of GGUF files, of any type that the package gguf supports, and rows of codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_engine.errors import BadModel
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.table_rows import row_type

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def dequantized(stored: StoredTensor, packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Dequantize rows of a tensor: contiguous [rows, bytes] to [rows, values].

    Raises:
        BadModel: the package is not installed.
    """
    coded = row_type(stored.storage)
    if coded is not None:
        return coded.floats(packed, stored.shape[-1])
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise BadModel(f"{stored.file.name}: {stored.storage} weights need the package gguf: {error}") from error
    values: NDArray[np.float32] = dequantize(packed, GGMLQuantizationType[stored.storage])
    return values
