"""Writes the newest state of something in a thread of its own, so that a hanging file system blocks nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_State = TypeVar("_State")

IDLE = 5.0
"""Seconds after which an idle thread ends."""


class LatestWriter(Generic[_State]):
    """Writes states in order; of those put while one is being written, only the newest.

    The thread is a daemon, started by `put` and ended when idle; it alone calls `write`.

    Args:
        write: writes a state; blocking; must not raise.
    """

    def __init__(self, write: Callable[[_State], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._states: list[_State] = []
        self._writes = self._has_thread = False

    @property
    def done(self) -> bool:
        """True if everything is written."""
        return not self._writes and not self._states

    def put(self, state: _State) -> None:
        """Have a state written, instead of one that still waits."""
        with self._changed:
            self._states = [state]
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="headrace-state", daemon=True).start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written; False: not within `seconds`. Blocking."""
        with self._changed:
            return self._changed.wait_for(lambda: self.done, seconds)

    def _run(self) -> None:
        while (state := self._next()) is not None:
            self._write(state)
            with self._changed:
                self._writes = False
                self._changed.notify_all()

    def _next(self) -> _State | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._states, IDLE):
                self._has_thread = False
                return None
            self._writes = True
            return self._states.pop()
