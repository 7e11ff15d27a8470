"""Writes the newest state of something in a thread of its own: a file system that hangs holds up nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_State = TypeVar("_State")

IDLE = 5.0
"""Seconds after which a thread without anything to write ends."""


class LatestWriter(Generic[_State]):
    """States in the order in which they came; of those that came while one was written, the newest alone.

    Args:
        write: writes a state; blocking, and it raises nothing.
    """

    def __init__(self, write: Callable[[_State], None]) -> None:
        self._write = write
        self._changed = threading.Condition()
        self._states: list[_State] = []
        self._writes = self._has_thread = False

    @property
    def done(self) -> bool:
        """Whether everything is written."""
        return not self._writes and not self._states

    def put(self, state: _State) -> None:
        """Have a state written, in the place of one that still waits."""
        with self._changed:
            self._states = [state]
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name="headrace-state", daemon=True).start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written, for so long at most; whether it is. Blocking."""
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
