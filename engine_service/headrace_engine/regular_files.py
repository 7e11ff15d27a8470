"""Files whose paths others name: only regular files are opened, and opening waits for nobody.

A FIFO would keep whoever opens it until somebody writes to it, and a device may never end.
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
    """Whether the name is taken, be it by a link to nowhere.

    Raises:
        OSError: that cannot be known.
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
        OSError: it is no regular file, is not there, or may not be read.
    """
    try:
        _check(os.stat(path))  # Opening a device may do something already.
        descriptor = os.open(path, _READ)
    except ValueError as error:
        raise _no_name(error) from None
    return _checked(descriptor, "rb")


def create_regular(path: Path) -> BinaryIO:
    """Open a file for reading and writing, as it is, or an empty one.

    Raises:
        OSError: it is no regular file, or may not be written.
    """
    return _checked(os.open(path, _WRITE, 0o644), "r+b")


def read_regular(path: Path, most: int) -> bytes:
    """The content of a file.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: it is no regular file, is not there, may not be read, or has more bytes.
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
        raise OSError(errno.EINVAL, f"it is no regular file, but {kind}")


def _no_name(error: ValueError) -> OSError:
    """A name that no file can have: it holds a zero byte, or half a surrogate pair."""
    return OSError(errno.EINVAL, f"its name is none of a file: {error}")
