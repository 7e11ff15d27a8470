"""Opens files at paths from users: only regular files, and without blocking.

Opening a FIFO would block until a writer appears, and reading a device may never end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_there(path: Path) -> bool:
    """Return True if the path exists, even as a dangling link.

    Raises:
        OSError: it cannot be determined.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:
        raise _no_name(error) from None
    return True


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        OSError: it is not a regular file, does not exist, or cannot be read.
    """
    try:
        _check(os.stat(path))  # Opening a device may already have side effects.
        descriptor = os.open(path, _READ)
    except ValueError as error:
        raise _no_name(error) from None
    return _checked(descriptor, "rb")


def create_regular(path: Path) -> BinaryIO:
    """Open a file for reading and writing; create it if it does not exist.

    Raises:
        OSError: it is not a regular file, or cannot be written.
    """
    return _checked(os.open(path, _WRITE, 0o644), "r+b")


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a file.

    Args:
        most: maximum size in bytes.

    Raises:
        OSError: it is not a regular file, does not exist, cannot be read, or is larger.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes; allowed: at most {most}")
        return file.read(size)


def _checked(descriptor: int, mode: str) -> BinaryIO:
    try:
        _check(os.fstat(descriptor))
        return os.fdopen(descriptor, mode)  # type: ignore[return-value]
    except BaseException:
        os.close(descriptor)
        raise


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"not a regular file but {kind}")


def _no_name(error: ValueError) -> OSError:
    """Return the error for a path that no file can have: it has a zero byte, or a lone surrogate."""
    return OSError(errno.EINVAL, f"not a valid file name: {error}")
