"""Models in memory: files in a folder for temporary files, which ends with the engine."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from headrace_engine.errors import OutOfMemory
from headrace_engine.models.loaders.opening import ARCHIVE

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MOST_IN_MEMORY = 8
"""Maximum number of models in memory."""

_FOLDER = "headrace-memory-"
FOLDERS = f"{_FOLDER}*"
"""Pattern of the names of all engines' folders, among the temporary files."""

_LOCK = "lock"


def is_file_name(name: str) -> bool:
    """Return True if files of models may have this base name."""
    return _NAME.fullmatch(name) is not None


class MemoryModels:
    """The folders of an engine's models in memory, each with the files of one model.

    Folders of engines that ended without cleaning up are deleted when the first model is written.

    Attributes:
        folder: their parent; it exists once a model was written.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir(), f"{_FOLDER}{secrets.token_hex(8)}")
        self._lock: int | None = None
        self._freed: set[str] = set()

    def open(self, name: str) -> Path:
        """Return the folder for a model of a name, which is not to be freed any more.

        Raises:
            OutOfMemory: there are MOST_IN_MEMORY others.
        """
        there = {archive.parent.name for archive in self.folder.glob(f"*/*{ARCHIVE}")}
        if len(others := there - {name}) >= MOST_IN_MEMORY:
            names = ", ".join(sorted(others))
            text = f"{len(others)} models are in memory ({names}), and no more may be: free one (FreeSerializedModel)"
            raise OutOfMemory(text, metadata={"model_name": name})
        self._freed.discard(name)
        if self._lock is None:
            _delete_abandoned(self.folder.parent)
            self.folder.mkdir(mode=0o700)
            self._lock = _locked(self.folder, create=True)
        return self.folder / name

    def free(self, name: str, used: Collection[str]) -> None:
        """Delete a model once it is not among those that installed models use."""
        self._freed.add(name)
        self.delete_freed(used)

    def delete_freed(self, used: Collection[str]) -> None:
        """Delete the freed models that no installed model uses."""
        for name in self._freed - set(used):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            self._freed.discard(name)

    def close(self) -> None:
        """Delete all models."""
        if self._lock is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _delete_abandoned(parent: Path) -> None:
    """Delete the folders whose engine is gone, and with it the lock."""
    for folder in parent.glob(FOLDERS):
        lock = _locked(folder, create=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path, *, create: bool) -> int | None:
    """Return a descriptor that holds a folder's lock; None: another process does, or it has none."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor is not None:
        os.close(descriptor)
    return None
