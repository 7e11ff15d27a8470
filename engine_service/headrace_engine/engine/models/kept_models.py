"""What is kept of the models over restarts, and the command line's word, which is newer than what was kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from headrace_engine.config import RuntimeConfig
from headrace_engine.daemon_thread import in_daemon
from headrace_engine.engine.models.state_store import SavedModel, StateStore
from headrace_engine.engine.work.latest_writer import LatestWriter
from headrace_engine.model_types import ModelState

SAVE_LIMIT = 5.0
"""Seconds that a verb waits for what it changed to be on disk."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replaced:
    """A kept model whose place another config of that name takes. Each change is such as "max_batch: 32 -> 4"."""

    model_name: str
    changes: tuple[str, ...]


class KeptModels:
    """The models that an engine returns to, always as they are on disk.

    A kept model whose config the command line changes stays kept until the new one could be read, so that a mistake on
    the command line loses nothing.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._saved: list[SavedModel] = []
        self._superseded: dict[str, SavedModel] = {}
        self._writer = LatestWriter(self._write)

    def open(self, newer: Sequence[RuntimeConfig]) -> tuple[list[SavedModel], list[Replaced]]:
        """Take the folder; what was kept and is still wanted, and what `newer` replaces.

        Raises:
            FailedPrecondition: see `StateStore.open`.
        """
        self._saved = self._store.open()
        word = {config.model_name: config for config in newer}
        other = {saved.config.model_name: saved for saved in self._saved if _differs(saved, word)}
        self._superseded = other
        kept = [saved for saved in self._saved if saved.config.model_name not in other]
        return kept, [Replaced(name, _changes(saved.config, word[name])) for name, saved in other.items()]

    def settle(self, model_name: str) -> None:
        """What stands under the name now could be read, or is gone: nothing older is kept in its place."""
        self._superseded.pop(model_name, None)

    def keep(self, models: Iterable[SavedModel]) -> None:
        """Save what the engine has, where it is not saved yet."""
        standing = {model.config.model_name: model for model in models if model.wanted is not ModelState.RELEASED}
        kept = list((standing | self._superseded).values())
        if kept == self._saved:
            return
        self._saved = kept
        self._writer.put(kept)

    async def saved(self) -> None:
        """Wait until what is kept is on disk. Where that takes too long serving goes on, and the log tells."""
        if not self._writer.done and not await in_daemon(self._writer.wait, SAVE_LIMIT):
            _log.error("state_not_saved: the state directory has not answered for %g s", SAVE_LIMIT)

    async def close(self) -> None:
        """Leave what is kept to the next engine."""
        await self.saved()
        self._store.close()

    def _write(self, kept: list[SavedModel]) -> None:
        try:
            self._store.save(kept)
        except OSError as error:  # Serving goes on; what is lost is the way back after a restart.
            _log.error("state_not_saved: %s", error)


def _differs(saved: SavedModel, word: dict[str, RuntimeConfig]) -> bool:
    name = saved.config.model_name
    return name in word and word[name] != saved.config


def _changes(old: RuntimeConfig, new: RuntimeConfig) -> tuple[str, ...]:
    names = [field.name for field in fields(RuntimeConfig) if getattr(old, field.name) != getattr(new, field.name)]
    return tuple(f"{name}: {_shown(name, old)} -> {_shown(name, new)}" for name in names)


def _shown(name: str, config: RuntimeConfig) -> str:
    """A value in a line of the log, where a template would be too long."""
    value = getattr(config, name)
    if value is None or value in ("", ()):
        return "unset"
    return f"{len(value)} characters" if name == "chat_template" else str(value)
