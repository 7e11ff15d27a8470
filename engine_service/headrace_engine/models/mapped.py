"""Bytes of stored tensors."""

from __future__ import annotations

import mmap

from headrace_engine.errors import BadModel
from headrace_engine.models.files import StoredTensor


def map_tensor(stored: StoredTensor) -> memoryview:
    """The tensor's bytes. Mapped copy-on-write, since torch takes no read-only memory.

    Raises:
        BadModel: the file has changed since it was opened.
    """
    try:
        with stored.file.open("rb") as file:
            size = file.seek(0, 2)
            if size < stored.offset + stored.nbytes:
                expected = stored.offset + stored.nbytes
                raise BadModel(f"{stored.file.name}: truncated: {size} bytes, expected at least {expected}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise BadModel(f"{stored.file.name}: cannot be read: {error.strerror}") from error
    return memoryview(mapped)[stored.offset : stored.offset + stored.nbytes]
