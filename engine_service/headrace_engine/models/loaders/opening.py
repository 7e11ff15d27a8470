"""Open the files of a model; a failure is a BadModel that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace_engine.errors import BadModel
from headrace_engine.regular_files import is_there, open_regular, read_regular


def open_model_file(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        BadModel: it is not a regular file, does not exist, or may not be read.
    """
    with _named(path):
        return open_regular(path)


def read_model_file(path: Path, most: int) -> bytes:
    """Return the contents of a file.

    Args:
        most: maximum size of the file, in bytes.

    Raises:
        BadModel: it is not a regular file, does not exist, may not be read, or is larger.
    """
    with _named(path):
        return read_regular(path, most)


def has_file(path: Path) -> bool:
    """True if the path exists, as a file or not: anything but a file is refused when opened, not treated as absent.

    Raises:
        BadModel: that cannot be determined.
    """
    with _named(path):
        return is_there(path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadModel(f"{path.name}: cannot be read: {error.strerror or error}") from error
