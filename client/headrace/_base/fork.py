"""Detecting use in a forked process, where a client has no threads and its locks may be held for ever."""

from __future__ import annotations

import os

_ADVICE = (
    'Make a client in each process, and start processes with the "spawn" method (multiprocessing.set_start_method), '
    "or fork before the first client is made."
)


class _Own:
    """The id of this process, asked for once: to ask with every read would take as long as the read.

    Attributes:
        id: the id.
    """

    def __init__(self) -> None:
        self.note()
        if hasattr(os, "register_at_fork"):  # There are systems without forks.
            os.register_at_fork(after_in_child=self.note)

    def note(self) -> None:
        """Ask for it."""
        self.id = os.getpid()


_own = _Own()


def current_process() -> int:
    """Return the id of this process, for a later `check_process`."""
    return _own.id


def check_process(maker: int) -> None:
    """Check that an object was made in this process; to be called before any lock is acquired.

    Raises:
        RuntimeError: this process is a fork of the one that made it.
    """
    if maker != _own.id:
        raise RuntimeError(f"this was made in process {maker} and cannot be used in its fork {_own.id}. {_ADVICE}")


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
            self._user = _own.id
        elif self._user != _own.id:
            raise RuntimeError(
                f"{self._library} was in use in process {self._user} when this process, {_own.id}, was forked from "
                f"it, and would hang here. {_ADVICE}"
            )
