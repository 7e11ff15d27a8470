"""Opening the files of a model: what cannot be opened is an error about the model, with the file's name."""

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
        BadModel: it is no regular file, is not there, or may not be read.
    """
    with _named(path):
        return open_regular(path)


def read_model_file(path: Path, most: int) -> bytes:
    """The content of a file.

    Args:
        most: bytes that it may have.

    Raises:
        BadModel: it is no regular file, is not there, may not be read, or has more bytes.
    """
    with _named(path):
        return read_regular(path, most)


def has_file(path: Path) -> bool:
    """Whether something has this name; what is no file is refused when it is opened, and not taken for absent.

    Raises:
        BadModel: that cannot be known.
    """
    with _named(path):
        return is_there(path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadModel(f"{path.name}: cannot be read: {error.strerror or error}") from error
