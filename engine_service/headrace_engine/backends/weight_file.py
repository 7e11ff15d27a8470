"""A file of packed weights.

It begins with a magic number, the length of a JSON header, and the header. The bytes of all matrices follow from the
next multiple of PAGE, each aligned to ALIGNMENT. The header describes the matrices, and identifies the state of the
model's files that they were built from.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace_engine.native import ALIGNMENT, Dtype, Format, Matrix
from headrace_engine.regular_files import create_regular, open_regular

MAGIC = b"HRWEIGHT"
PAGE = 4096
_HEAD = struct.Struct("<8sQ")
_LONGEST_HEADER = 2**26


class Contents(Protocol):
    """Packed matrices by name, in memory or on a device: the source or target of a file."""

    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the storage of each matrix as JSON values, in file order."""
        ...

    def pieces(self, name: str) -> Iterable[NDArray[np.uint8]]:
        """Yield the bytes of a matrix, in order."""
        ...

    def add(self, name: str, described: Mapping[str, Any]) -> int:
        """Reserve memory for one more matrix; return its size in bytes.

        Raises:
            ValueError, KeyError, TypeError: not a valid description.
        """
        ...

    def fill(self, name: str, data: memoryview) -> None:
        """Copy data into a reserved matrix; it is valid during the call only. Threads fill matrices concurrently."""
        ...

    def clear(self) -> None:
        """Remove all matrices."""
        ...


def matrix_fields(matrix: Matrix) -> dict[str, Any]:
    """Return the storage of a matrix as JSON values."""
    return asdict(matrix)


def matrix_of(fields: Mapping[str, Any]) -> Matrix:
    """Return the matrix of `matrix_fields`.

    Raises:
        ValueError, KeyError, TypeError: not a valid description.
    """
    scales = fields["scales"]
    return Matrix(
        **{
            **fields,
            "format": Format(fields["format"]),
            "scales": None if scales is None else Dtype(scales),
            "codebook": tuple(fields["codebook"]),
        }
    )


def read_file(path: Path, state: str, contents: Contents, threads: int) -> None:
    """Fill empty contents.

    Args:
        state: hash of the state of the model's files.

    Raises:
        OSError: the file is missing, or cannot be read.
        ValueError, KeyError, TypeError: it is damaged, or was built from another state of the files.
    """
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header, start = _read_header(data)
        if header["state"] != state:
            raise ValueError("the model's files have changed")
        extents = []
        for entry in header["matrices"]:
            end = start + contents.add(entry["name"], entry["matrix"])
            extents.append((entry, start, end))
            start = _aligned(end)
        if start != len(data):
            raise ValueError(f"it has {len(data)} bytes, expected {start}")
        _fill(contents, data, extents, threads)


def _fill(contents: Contents, data: mmap.mmap, extents: Iterable[tuple[Any, int, int]], threads: int) -> None:
    """Fill all matrices in parallel, and verify their checksums."""
    with memoryview(data) as view, ThreadPoolExecutor(threads, thread_name_prefix="headrace-copy") as pool:
        for filled in [pool.submit(_fill_one, contents, entry, view[begin:end]) for entry, begin, end in extents]:
            filled.result()


def _fill_one(contents: Contents, entry: Mapping[str, Any], data: memoryview) -> None:
    # Released here: the file cannot be unmapped while there are views of it.
    with data:
        contents.fill(entry["name"], data)
        if zlib.crc32(data) != entry["crc32"]:
            raise ValueError("damaged: a matrix does not have its checksum")


def _read_header(data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """Return the header, and the offset of the first matrix."""
    if len(data) < _HEAD.size:
        raise ValueError("truncated")
    magic, length = _HEAD.unpack_from(data)
    if magic != MAGIC or length > min(_LONGEST_HEADER, len(data) - _HEAD.size):
        raise ValueError("not a packed-weights file (bad magic)")
    header = json.loads(data[_HEAD.size : _HEAD.size + length])
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header, _start(length)


def write_file(path: Path, state: str, contents: Contents) -> None:
    """Write contents, unless another process is doing so.

    Raises:
        OSError: the disk is full, or the file cannot be written.
    """
    header, size = _header(state, contents)
    _check_disk_space(path.parent, size)
    _write(path, header, contents)


def _header(state: str, contents: Contents) -> tuple[bytes, int]:
    """Return the header, and the size of all matrices in bytes."""
    matrices, size = [], 0
    for name, described in contents.described().items():
        checksum = 0
        for piece in contents.pieces(name):
            checksum = zlib.crc32(piece.data, checksum)
            size += piece.nbytes
        size = _aligned(size)
        matrices.append({"name": name, "matrix": described, "crc32": checksum})
    return json.dumps({"state": state, "matrices": matrices}).encode(), size


def _start(header: int) -> int:
    return -(-(_HEAD.size + header) // PAGE) * PAGE


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def _check_disk_space(folder: Path, needed: int) -> None:
    """Raise OSError unless the disk keeps an eighth of the file free: a full disk would fail other programs too."""
    free = shutil.disk_usage(folder).free
    if free < needed + needed // 8:
        raise OSError(f"{needed} bytes are needed, {free} are free")


def _write(path: Path, header: bytes, contents: Contents) -> None:
    """Write to a .part file, and rename it once complete. One process at a time writes; leftovers are overwritten."""
    part = path.with_suffix(".part")
    with create_regular(part) as file:
        if not _locked(file.fileno(), part):
            return  # Another process is writing the same, or has just done so.
        file.truncate(0)
        file.write(_HEAD.pack(MAGIC, len(header)) + header)
        file.seek(_start(len(header)))
        for name in contents.described():
            for piece in contents.pieces(name):
                file.write(piece.data)
            file.seek(_aligned(file.tell()))
        file.truncate(file.tell())
        file.flush()
        part.replace(path)


def _locked(descriptor: int, path: Path) -> bool:
    """Return True if this process holds the only lock, and the file still has this name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last writer may have renamed the file between its opening here and the lock: it is finished, and not ours.
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
