"""Files inside an archive, NAME.asmodel, at paths below it: config.json is NAME.asmodel/config.json.

An archive is a safetensors file, whose tensors are the files' bytes by name.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from headrace_engine.models.files import StoredTensor
from headrace_engine.models.loaders.safetensors import read_header
from headrace_engine.regular_files import open_regular

_MAX_HEADER = 2**20
"""Maximum size of an archive's header, in bytes: it is read again for each file, and describes few."""


def read_entries(archive: Path) -> dict[str, StoredTensor]:
    """Return where the files are, by name.

    Raises:
        BadModel: the archive is damaged.
    """
    return read_header(archive, _MAX_HEADER)[0]


def has_entry(archive: Path, name: str) -> bool:
    """Return True if the archive has a file of this name.

    Raises:
        BadModel: the archive is damaged.
        OSError: it cannot be read.
    """
    return name in read_entries(archive)


def read_entry(archive: Path, name: str, most: int) -> bytes:
    """Return a file's content.

    Args:
        most: maximum size in bytes.

    Raises:
        BadModel: the archive is damaged.
        OSError: it cannot be read, has no file of this name, or the file is larger.
    """
    stored = read_entries(archive).get(name)
    if stored is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if stored.nbytes > most:
        raise OSError(errno.EFBIG, f"it has {stored.nbytes} bytes; allowed: at most {most}")
    with open_regular(archive) as file:
        file.seek(stored.offset)
        return file.read(stored.nbytes)
