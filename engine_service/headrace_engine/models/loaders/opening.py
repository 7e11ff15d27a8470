"""Open the files of a model; a failure is a BadModel that names the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace_engine.errors import BadModel
from headrace_engine.regular_files import is_there, open_regular, read_regular

ARCHIVE = ".asmodel"
"""Suffix of archives: the paths below one are files in it, as NAME.asmodel/config.json. See archive.py."""


def archive_of(path: Path) -> tuple[Path, str] | None:
    """Return the archive that a path is in, and the file's name there; None: it is an ordinary path."""
    archive = next((parent for parent in path.parents if parent.suffix == ARCHIVE), None)
    return None if archive is None or archive.is_dir() else (archive, path.relative_to(archive).as_posix())


def open_model_file(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
        BadModel: it is not a regular file, does not exist, or may not be read.
    """
    with _named(path):
        return open_regular(path)


def stat_model_file(path: Path) -> os.stat_result:
    """Return the state of a file.

    Raises:
        BadModel: it does not exist, or may not be looked at.
    """
    with _named(path):
        return path.stat()


def read_model_file(path: Path, most: int) -> bytes:
    """Return the contents of a file.

    Args:
        most: maximum size of the file, in bytes.

    Raises:
        BadModel: it is not a regular file, does not exist, may not be read, or is larger.
    """
    with _named(path):
        inside = archive_of(path)
        if inside is None:
            return read_regular(path, most)
        # Archives are read with the functions of this module.
        from headrace_engine.models.loaders.archive import read_entry

        return read_entry(*inside, most)


def has_file(path: Path) -> bool:
    """True if the path exists, as a file or not: anything but a file is refused when opened, not treated as absent.

    Raises:
        BadModel: that cannot be determined.
    """
    with _named(path):
        inside = archive_of(path)
        if inside is None:
            return is_there(path)
        from headrace_engine.models.loaders.archive import has_entry

        return has_entry(*inside)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadModel(f"{path.name}: cannot be read: {error.strerror or error}") from error
