"""A file of packed weights.

It begins with a magic number, the length of a JSON header, and the header; from the next multiple of PAGE on stand the
bytes of all matrices, each from a multiple of ALIGNMENT on. The header says what the matrices are and from which state
of a model's files they were made.
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
    """Packed matrices by name, in memory or on a device: what a file is written from, or filled into."""

    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """How each matrix is stored, in their order: what JSON holds."""
        ...

    def pieces(self, name: str) -> Iterable[NDArray[np.uint8]]:
        """The bytes of a matrix, in order."""
        ...

    def place(self, name: str, described: Mapping[str, Any]) -> int:
        """Room for one more matrix: how many bytes it has.

        Raises:
            ValueError, KeyError, TypeError: that describes no matrix.
        """
        ...

    def fill(self, name: str, data: memoryview) -> None:
        """Take the bytes of a matrix that has its place. Threads fill different ones at once."""
        ...

    def clear(self) -> None:
        """Forget all matrices."""
        ...


def matrix_fields(matrix: Matrix) -> dict[str, Any]:
    """How a matrix is stored, as JSON holds it."""
    return asdict(matrix)


def matrix_of(fields: Mapping[str, Any]) -> Matrix:
    """The matrix of `matrix_fields`.

    Raises:
        ValueError, KeyError, TypeError: there is no such matrix.
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
        state: of the model's files.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError, KeyError, TypeError: it is damaged, or was made from something else.
    """
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header, start = _read_header(data)
        if header["state"] != state:
            raise ValueError("the model's files have changed")
        places = []
        for entry in header["matrices"]:
            end = start + contents.place(entry["name"], entry["matrix"])
            places.append((entry, start, end))
            start = _aligned(end)
        if start != len(data):
            raise ValueError(f"it has {len(data)} bytes, expected {start}")
        _fill(contents, data, places, threads)


def _fill(contents: Contents, data: mmap.mmap, places: Iterable[tuple[Any, int, int]], threads: int) -> None:
    """By all threads; each matrix is compared with its checksum."""
    with memoryview(data) as view, ThreadPoolExecutor(threads, thread_name_prefix="headrace-copy") as pool:
        for filled in [pool.submit(_fill_one, contents, entry, view[begin:end]) for entry, begin, end in places]:
            filled.result()


def _fill_one(contents: Contents, entry: Mapping[str, Any], data: memoryview) -> None:
    with data:
        contents.fill(entry["name"], data)
        if zlib.crc32(data) != entry["crc32"]:
            raise ValueError("damaged: a matrix does not have its checksum")


def _read_header(data: mmap.mmap) -> tuple[dict[str, Any], int]:
    """The header, and where the matrices begin."""
    if len(data) < _HEAD.size:
        raise ValueError("truncated")
    magic, length = _HEAD.unpack_from(data)
    if magic != MAGIC or length > min(_LONGEST_HEADER, len(data) - _HEAD.size):
        raise ValueError("it does not begin as a file of weights does")
    header = json.loads(data[_HEAD.size : _HEAD.size + length])
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header, _start(length)


def write_file(path: Path, state: str, contents: Contents) -> None:
    """Write contents, unless another process is doing so.

    Raises:
        OSError: there is no room, or it cannot be written.
    """
    header, size = _header(state, contents)
    _check_room(path.parent, size)
    _write(path, header, contents)


def _header(state: str, contents: Contents) -> tuple[bytes, int]:
    """The header, and how many bytes the matrices take."""
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


def _check_room(folder: Path, needed: int) -> None:
    """A disk that was filled up would fail others too."""
    free = shutil.disk_usage(folder).free
    if free < needed + needed // 8:
        raise OSError(f"{needed} bytes are needed, {free} are free")


def _write(path: Path, header: bytes, contents: Contents) -> None:
    """Under another name until it is whole. Only one process at a time writes there; what one left is overwritten."""
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
    """Nobody else writes to the file, and it still has this name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
