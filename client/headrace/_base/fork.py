"""Detecting use in a forked process, where a client has no threads and its locks may be held for ever."""

from __future__ import annotations

import os

_ADVICE = (
    'Make a client in each process, and start processes with the "spawn" method (multiprocessing.set_start_method), '
    "or fork before the first client is made."
)


def current_process() -> int:
    """Return the id of this process, for a later `check_process`."""
    return os.getpid()


def check_process(maker: int) -> None:
    """Check that an object was made in this process; to be called before any lock is acquired.

    Raises:
        RuntimeError: this process is a fork of the one that made it.
    """
    if maker != os.getpid():
        raise RuntimeError(f"this was made in process {maker} and cannot be used in its fork {os.getpid()}. {_ADVICE}")


class ForkGuard:
    """Remembers the process that first used a library which does not work after a fork."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._user: int | None = None

    def enter(self) -> None:
        """Record that this process uses the library.

        Raises:
            RuntimeError: a process that this one was forked from has used it, so it would hang here.
        """
        if self._user is None:
            self._user = os.getpid()
        elif self._user != os.getpid():
            raise RuntimeError(
                f"{self._library} was in use in process {self._user} when this process, {os.getpid()}, was forked from "
                f"it, and would hang here. {_ADVICE}"
            )
