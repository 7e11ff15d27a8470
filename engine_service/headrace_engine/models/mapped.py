"""Memory mapping of stored tensors."""

from __future__ import annotations

import mmap
import zlib
from typing import BinaryIO

from headrace_engine.errors import BadModel
from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.opening import open_model_file


def map_tensor(stored: StoredTensor) -> memoryview:
    """Map the tensor's bytes, copy-on-write since torch takes no read-only memory; or assemble them in memory.

    The view owns the mapping: it is unmapped once the view and every array on top of it are gone.

    Raises:
        BadModel: the file has changed since it was opened, cannot be mapped, does not have the tensor's checksum,
            or holds codes, scales or zero points that its layout does not allow.
    """
    if stored.assembly is not None:
        from headrace_engine.models.assembled import assemble  # Needs numpy, which opening a model does not.

        return assemble(stored, map_tensor)
    with open_model_file(stored.file) as file:
        size, expected = file.seek(0, 2), stored.offset + stored.nbytes
        if size < expected:
            raise BadModel(f"{stored.file.name}: truncated: {size} bytes, expected at least {expected}")
        mapped = memoryview(_map(file, stored))
    _check(mapped, stored)
    return mapped[stored.offset : stored.offset + stored.nbytes]


def _check(mapped: memoryview, stored: StoredTensor) -> None:
    if stored.checksum is None:
        return
    begin, end = stored.checksum.offset, stored.checksum.offset + stored.checksum.nbytes
    with mapped[begin:end] as data:
        if zlib.crc32(data) != stored.checksum.crc32:
            raise stored.error("is damaged: it does not have its checksum")


def _map(file: BinaryIO, stored: StoredTensor) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # Out of address space, a file system without mmap, or an empty file.
        raise BadModel(f"{stored.file.name}: cannot be read: {error}") from error
