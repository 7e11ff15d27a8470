"""Persists installed configs and wanted states over restarts of the engine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.models.adapters import KeptAdapters
from headrace_engine.errors import FailedPrecondition
from headrace_engine.model_types import ModelState
from headrace_engine.regular_files import create_regular, is_there, read_regular

FILE = "models.json"
_LONGEST = 2**30
"""Maximum size of the file, in bytes; a config has at most 1 MiB."""

LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model that the engine restores after a restart.

    Attributes:
        by_operator: the operator chose its path, which need not lie in a model root.
        adapters: instead of those of its config, where calls have changed them.
    """

    config: RuntimeConfig
    wanted: ModelState
    by_operator: bool = False
    adapters: KeptAdapters | None = None


class StateStore:
    """One JSON file in a folder, replaced atomically at every change. A lock makes the folder this engine's alone.

    Args:
        folder: created if missing; None: nothing is stored.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock: int | None = None

    def open(self) -> list[SavedModel]:
        """Lock the folder, until `close` or the end of the process, and return the models saved last.

        Raises:
            FailedPrecondition: the folder cannot be used, another engine uses it, or its file is damaged.
        """
        if self._folder is None:
            return []
        self._lock = _lock(self._folder)
        try:
            return _load(self._folder / FILE)
        except BaseException:
            self.close()
            raise

    def save(self, models: Iterable[SavedModel]) -> None:
        """Replace the saved models. Does nothing unless the folder is locked: it may be another engine's."""
        if self._folder is None or self._lock is None:
            return
        path = self._folder / FILE
        draft = path.with_suffix(".new")
        with create_regular(draft) as file:
            file.truncate(0)
            file.write(msgspec.json.format(msgspec.json.encode(list(models))))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def close(self) -> None:
        """Unlock the folder for the next engine."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _lock(folder: Path) -> int:
    """Return the locked descriptor: no child process inherits it, and the kernel releases it even after a crash."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        text = f"state directory {folder} cannot be used ({error.strerror})"
        raise _unusable(f"{text}: name a directory that the engine may write to") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            text = f"state directory {folder} is in use by another engine: give each engine a directory of its own"
        else:
            text = f"state directory {folder} cannot be locked ({error.strerror}): name one on a local file system"
        raise _unusable(text) from error
    return lock


def _load(path: Path) -> list[SavedModel]:
    try:
        if not is_there(path):
            return []
        return msgspec.json.decode(read_regular(path, _LONGEST), type=list[SavedModel])
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise _unusable(
            f"{path} cannot be read ({reason}): repair or remove it; it lists the models to restore"
        ) from error


def _unusable(text: str) -> FailedPrecondition:
    return FailedPrecondition(text, reason="BAD_MODEL")
