"""Keeps installed configs and wanted states over restarts of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace_engine.config import RuntimeConfig
from headrace_engine.errors import FailedPrecondition
from headrace_engine.model_types import ModelState

FILE = "models.json"


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model that the engine returns to."""

    config: RuntimeConfig
    wanted: ModelState


class StateStore:
    """One JSON file in a folder, replaced as a whole at every change.

    Args:
        folder: made if it is not there; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> list[SavedModel]:
        """The models saved last.

        Raises:
            FailedPrecondition: the file cannot be read, or is damaged; names it.
        """
        if self._path is None or not self._path.exists():
            return []
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[SavedModel])
        except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
            text = f"{self._path} cannot be read ({error}): mend or remove it"
            raise FailedPrecondition(text, reason="BAD_MODEL") from error

    def save(self, models: Iterable[SavedModel]) -> None:
        """Replace what was saved."""
        if self._path is None:
            return
        draft = self._path.with_suffix(".new")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(list(models))))
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(self._path)
