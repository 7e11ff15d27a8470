"""Memory mapping of stored tensors."""

from __future__ import annotations

import mmap
from typing import BinaryIO

from headrace_engine.errors import BadModel
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.opening import open_model_file


def map_tensor(stored: StoredTensor) -> memoryview:
    """Map the tensor's bytes, copy-on-write since torch takes no read-only memory.

    The view owns the mapping: it is unmapped once the view and every array on top of it are gone.

    Raises:
        BadModel: the file has changed since it was opened, or cannot be mapped.
    """
    with open_model_file(stored.file) as file:
        size, expected = file.seek(0, 2), stored.offset + stored.nbytes
        if size < expected:
            raise BadModel(f"{stored.file.name}: truncated: {size} bytes, expected at least {expected}")
        mapped = _map(file, stored)
    return memoryview(mapped)[stored.offset : stored.offset + stored.nbytes]


def _map(file: BinaryIO, stored: StoredTensor) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # Out of address space, a file system without mmap, or an empty file.
        raise BadModel(f"{stored.file.name}: cannot be read: {error}") from error
