"""Identify the state of a model's files without reading their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.opening import open_model_file

_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHUNK = 4 * 2**20


def digest_of(parts: Iterable[tuple[str, int, bytes]]) -> str:
    """Return a digest of files, each given as name, size and header bytes; 32 hexadecimal digits."""
    state = blake2b(digest_size=16)
    for name, size, described in parts:
        state.update(f"{name}\0{size}\0{len(described)}\0".encode())
        state.update(described)
    return state.hexdigest()


def snapshot_commit(directory: Path) -> str | None:
    """Return the commit of a directory in a hub's cache, from its path; None for other directories."""
    if directory.parent.name == "snapshots" and _COMMIT.fullmatch(directory.name):
        return directory.name
    return None


def same_bytes(left: StoredTensor, right: StoredTensor) -> bool:
    """True if both tensors hold the same values in the same storage type. Reads up to the first difference."""
    if (left.storage, left.shape) != (right.storage, right.shape):
        return False
    with open_model_file(left.file) as left_file, open_model_file(right.file) as right_file:
        left_file.seek(left.offset)
        right_file.seek(right.offset)
        for begin in range(0, left.nbytes, _CHUNK):
            count = min(_CHUNK, left.nbytes - begin)
            if left_file.read(count) != right_file.read(count):
                return False
    return True
