"""The models that are kept over restarts; configs declared on the command line replace them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from headrace_proto.pure.daemon_thread import in_daemon

from headrace_engine.config import RuntimeConfig
from headrace_engine.engine.models.state_store import SavedModel, StateStore
from headrace_engine.engine.work.latest_writer import LatestWriter
from headrace_engine.model_types import ModelState

SAVE_LIMIT = 5.0
"""Seconds that a verb waits until its change is on disk."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A kept model that a declared config of that name replaces. Changes are such as "max_batch: 32 -> 4"."""

    model_name: str
    changes: tuple[str, ...]


class KeptModels:
    """The models that an engine restores after a restart, mirrored on disk.

    A kept model whose config the command line changes stays on disk until the new one has been read, so that a mistake
    on the command line loses nothing.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._saved: list[SavedModel] = []
        self._superseded: dict[str, SavedModel] = {}
        self._writer = LatestWriter(self._write)

    def open(self, newer: Sequence[RuntimeConfig]) -> tuple[list[SavedModel], list[Replaced]]:
        """Lock the folder; return the kept models to restore, and those that `newer` replaces.

        Raises:
            FailedPrecondition: see `StateStore.open`.
        """
        self._saved = self._store.open()
        declared = {config.model_name: config for config in newer}
        other = {saved.config.model_name: saved for saved in self._saved if _differs(saved, declared)}
        self._superseded = other
        kept = [saved for saved in self._saved if saved.config.model_name not in other]
        return kept, [Replaced(name, _changes(saved.config, declared[name])) for name, saved in other.items()]

    def settle(self, model_name: str) -> None:
        """Forget the replaced config of this name: the new model has been read, or released."""
        self._superseded.pop(model_name, None)

    def keep(self, models: Iterable[SavedModel]) -> None:
        """Save the engine's models, unless they are saved already."""
        current = {model.config.model_name: model for model in models if model.wanted is not ModelState.RELEASED}
        kept = list((current | self._superseded).values())
        if kept == self._saved:
            return
        self._saved = kept
        self._writer.put(kept)

    async def saved(self) -> None:
        """Wait until the models are on disk. After SAVE_LIMIT, log an error and go on serving."""
        if not self._writer.done and not await in_daemon(self._writer.wait, SAVE_LIMIT):
            _log.error("state_not_saved: the state directory has not answered for %g s", SAVE_LIMIT)

    async def close(self) -> None:
        """Wait for pending writes and unlock the folder for the next engine."""
        await self.saved()
        self._store.close()

    def _write(self, kept: list[SavedModel]) -> None:
        try:
            self._store.save(kept)
        except OSError as error:  # Serving goes on; only the restore after a restart is lost.
            _log.error("state_not_saved: %s", error)


def _differs(saved: SavedModel, declared: dict[str, RuntimeConfig]) -> bool:
    name = saved.config.model_name
    return name in declared and declared[name] != saved.config


def _changes(old: RuntimeConfig, new: RuntimeConfig) -> tuple[str, ...]:
    names = [field.name for field in fields(RuntimeConfig) if getattr(old, field.name) != getattr(new, field.name)]
    return tuple(f"{name}: {_shown(name, old)} -> {_shown(name, new)}" for name in names)


def _shown(name: str, config: RuntimeConfig) -> str:
    """Return a value as text for a log line; a template by its length alone."""
    value = getattr(config, name)
    if value is None or value in ("", ()):
        return "unset"
    return f"{len(value)} characters" if name == "chat_template" else str(value)
