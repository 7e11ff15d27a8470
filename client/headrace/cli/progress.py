"""Progress of a model on its engines, shown while a call waits for it."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace._transport.message_iterator import MessageIterator
from headrace.cli.output import note
from headrace.client import Client
from headrace.errors import HeadraceError, UnavailableError
from headrace.model_types import ModelInfo, ModelProgress
from headrace.types import ModelState

if TYPE_CHECKING:
    from rich.status import Status

_IN_PROGRESS = (ModelState.INSTALLING, ModelState.STARTING, ModelState.STOPPING)
_PAUSE = 1.0  # seconds before a watch that was interrupted is opened again


class Progress:
    """Shows states and phases of a model as they change: in one line of a terminal, line by line elsewhere.

    Failures of the watch are ignored: the call that waits reports the outcome. A thread of its own reads the watch
    until the context is left.

    Args:
        client: client of the server that has the model.
        name: name of the model.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._shown: dict[str, str] = {}
        self._watch: MessageIterator[ModelInfo] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="headrace-progress", daemon=True)
        self._status = status(name)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._watch is not None:
            self._watch.close()
        self._thread.join()
        if self._status is not None:
            self._status.stop()

    def _follow(self) -> None:
        while not self._done.is_set():
            try:
                self._show_all()
            except UnavailableError:
                self._done.wait(_PAUSE)
            except HeadraceError:
                return

    def _show_all(self) -> None:
        # All models are watched, because one that is being installed may not exist yet.
        with self._client.watch_model() as watch:
            self._watch = watch
            if self._done.is_set():
                return
            for model in watch:
                if model.model_name == self._name and model.state in _IN_PROGRESS:
                    self._show(model)

    def _show(self, model: ModelInfo) -> None:
        phase = _phase(model)
        if self._status is not None:
            self._shown[model.engine] = f"{model.engine}  {phase}{_amount(model.progress)}"
            self._status.update("  ".join([self._name, *self._shown.values()]))
        elif self._shown.get(model.engine) != phase:
            self._shown[model.engine] = phase
            note(f"{self._name}  {model.engine}  {phase}")


def status(text: str) -> Status | None:
    """Return a line that shows what is in progress; None where stderr is no terminal."""
    return _status(text) if sys.stderr.isatty() else None


def in_words(progress: ModelProgress) -> str:
    """Return phase and amount of a progress, for people."""
    return f"{progress.phase.lower().replace('_', ' ')}{_amount(progress)}"


def _status(text: str) -> Status:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False).status(text)


def _phase(model: ModelInfo) -> str:
    return (model.progress.phase if model.progress is not None else str(model.state)).lower().replace("_", " ")


def _amount(progress: ModelProgress | None) -> str:
    if progress is None or not progress.bytes_total:
        return ""
    return f"  {progress.bytes_done / 1e6:,.0f}/{progress.bytes_total / 1e6:,.0f} MB"
