"""Packed weights on disk, so that a model that was started before need not be unpacked and packed again.

One file holds an arena: a magic number, the length of a JSON header, the header, and from the next multiple of
PAGE on the bytes of all matrices. The name of the file says which model it is and how it is stored; the header says
from which state of the model's files it was made. What does not fit, or is damaged, is made anew.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from headrace_engine.backends.cpu.arena import Arena, Placed
from headrace_engine.backends.cpu.rows import padded_head_dim
from headrace_engine.backends.cpu.storage import Storage
from headrace_engine.models.files import ModelFiles
from headrace_engine.native import Dtype, Format, Matrix

FOLDER_VARIABLE = "HEADRACE_CACHE"
"""Environment variable with the folder of all caches, instead of headrace in the user's own cache folder."""

MAGIC = b"HRWEIGHT"
PAGE = 4096
_VERSION = 1
"""Of the file, and of how weights become codes: what was written under another number is made anew."""
_HEAD = struct.Struct("<8sQ")
_LONGEST_HEADER = 2**26

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What a cached arena was made from.

    Attributes:
        name: of the model's path and the way that it is stored.
        state: of the model's files.
    """

    name: str
    state: str


def cache_key(files: ModelFiles, storage: Storage, layout: int) -> CacheKey:
    """The key of a model that is stored in some way, in some layout of packed matrices."""
    padded = padded_head_dim(files.spec)
    how = (_VERSION, layout, str(files.path.resolve()), storage.dtype, storage.quant, storage.group, padded)
    parts = [files.revision]
    for file in sorted({info.stored.file.resolve() for info in files.tensors.values()}):
        stat = file.stat()
        parts.append(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}")
    return CacheKey(_digest(map(str, how)), _digest(parts))


def _digest(parts: Any) -> str:
    return blake2b("\1".join(parts).encode(), digest_size=16).hexdigest()


def cache_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where packed weights are kept; None where the user has no home."""
    given = os.environ if environment is None else environment
    if own := given.get(FOLDER_VARIABLE):
        return Path(own) / "weights"
    try:
        base = Path(given.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "headrace" / "weights"


class WeightCache:
    """Arenas in a folder.

    Args:
        folder: is made when the first is written; None: nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, key: CacheKey, arena: Arena, threads: int) -> bool:
        """Fill an empty arena with what is kept under a key; False leaves it empty."""
        if self._folder is None:
            return False
        path = self._path(key)
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _fill(arena, data, key, threads)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError) as error:
            arena.clear()
            _log.info("weight_cache_not_used: %s: %s; the weights are packed anew", path, error)
            return False
        return True

    def write(self, key: CacheKey, arena: Arena) -> None:
        """Keep an arena. What goes wrong is logged, and is no failure."""
        if self._folder is None:
            return
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _check_room(self._folder, arena.used)
            _write(path, _header(key, arena), arena)
        except OSError as error:
            _log.warning("weights_not_cached: %s: %s", path, error)

    def _path(self, key: CacheKey) -> Path:
        assert self._folder is not None
        return self._folder / f"{key.name}.weights"


def _fill(arena: Arena, data: mmap.mmap, key: CacheKey, threads: int) -> None:
    """Copies by all threads, each matrix compared with its checksum.

    Raises:
        ValueError: the file is damaged, or was made from something else.
    """
    header, start = _read_header(data)
    if header["state"] != key.state:
        raise ValueError("the model's files have changed")
    for entry in header["matrices"]:
        arena.place(entry["name"], _matrix(entry["matrix"]))
    if start + arena.used != len(data):
        raise ValueError(f"it has {len(data)} bytes, expected {start + arena.used}")
    view = memoryview(data)[start:]
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="headrace-copy") as pool:
            pairs = zip(arena.placed.values(), header["matrices"], strict=True)
            for copied in [pool.submit(_copy, arena, placed, view, entry["crc32"]) for placed, entry in pairs]:
                copied.result()
    finally:
        view.release()


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


def _copy(arena: Arena, placed: Placed, view: memoryview, checksum: int) -> None:
    at = placed.position
    for piece in arena.bytes_of(placed):
        np.copyto(piece, np.frombuffer(view[at : at + piece.nbytes], dtype=np.uint8))
        at += piece.nbytes
    if _checksum(arena, placed) != checksum:
        raise ValueError("damaged: a matrix does not have its checksum")


def _checksum(arena: Arena, placed: Placed) -> int:
    checksum = 0
    for piece in arena.bytes_of(placed):
        checksum = zlib.crc32(piece.data, checksum)
    return checksum


def _matrix(fields: dict[str, Any]) -> Matrix:
    scales = fields["scales"]
    return Matrix(
        **{
            **fields,
            "format": Format(fields["format"]),
            "scales": None if scales is None else Dtype(scales),
            "codebook": tuple(fields["codebook"]),
        }
    )


def _header(key: CacheKey, arena: Arena) -> bytes:
    matrices = [
        {"name": name, "matrix": asdict(placed.matrix), "crc32": _checksum(arena, placed)}
        for name, placed in arena.placed.items()
    ]
    return json.dumps({"state": key.state, "matrices": matrices}).encode()


def _start(header: int) -> int:
    return -(-(_HEAD.size + header) // PAGE) * PAGE


def _check_room(folder: Path, needed: int) -> None:
    """A disk that was filled up would fail others too."""
    free = shutil.disk_usage(folder).free
    if free < needed + needed // 8:
        raise OSError(f"{needed} bytes are needed, {free} are free")


def _write(path: Path, header: bytes, arena: Arena) -> None:
    """Under another name until it is whole. Only one process at a time writes there; what one left is overwritten."""
    part = path.with_suffix(".part")
    with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
        if not _locked(file.fileno(), part):
            return  # Another process is writing the same, or has just done so.
        file.truncate(0)
        file.write(_HEAD.pack(MAGIC, len(header)) + header)
        start = _start(len(header))
        for placed in arena.placed.values():
            file.seek(start + placed.position)
            for piece in arena.bytes_of(placed):
                file.write(piece.data)
        file.truncate(start + arena.used)
        file.flush()
        part.replace(path)


def _locked(descriptor: int, path: Path) -> bool:
    """Nobody else writes to the file, and it still has this name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
