"""A side process that starts when it is needed, and is replaced when it has ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from headrace_engine.engine.work.side_process import SideProcess

Reply = TypeVar("Reply")


class Ended(Exception):
    """The process ended where a reply was due.

    Args:
        status: its exit status.
        at_start: it had not replied to its first message.
    """

    def __init__(self, status: int, *, at_start: bool) -> None:
        super().__init__(status)
        self.status = status
        self.at_start = at_start


class SideWorker(Generic[Reply]):
    """Asks a side process. Blocking; safe to call from several threads, which take turns.

    It owns its process, which starts with the first message, is replaced after a crash, and ends with this object.

    Args:
        module: the program, run with the number of its socket as argument.
        task: description of what the process does, for errors.
        setup: the first message to each process.
        reply: type of all replies.
        closed: makes the error after `close`.
        accept: takes the reply to `setup`; may raise, which ends the process.
    """

    def __init__(
        self,
        module: str,
        task: str,
        setup: object,
        reply: type[Reply],
        closed: Callable[[], Exception],
        accept: Callable[[Reply], None] = lambda _: None,
    ) -> None:
        self._program = _program(module)
        self._task, self._setup, self._reply = task, setup, reply
        self._when_closed, self._accept = closed, accept
        self._turn = Lock()
        self._process: SideProcess | None = None
        self._closed = False

    def start(self) -> None:
        """Start the process, unless it runs.

        Raises:
            Ended, Exception: as `ask`.
        """
        with self._turn:
            self._running()

    def ask(self, message: object) -> Reply:
        """Send a message, to a new process if there is none, and return the reply.

        Raises:
            Ended: the process ended instead.
            UnicodeEncodeError: the message contains half of a surrogate pair.
            Internal: the process cannot be started.
            Exception: of `closed`, or of `accept`.
        """
        with self._turn:
            return self._exchange(self._running(), message)

    def close(self) -> None:
        """End the process; a message in progress fails, and so do later ones. Safe to call from any thread."""
        self._closed = True
        if self._process is not None:
            self._process.kill()  # Unblocks the thread that holds the lock and waits for a reply.
        with self._turn:
            self._end()

    def _running(self) -> SideProcess:
        if self._closed:
            raise self._when_closed()
        if self._process is None or self._process.has_ended:  # Between messages, so that none is to blame.
            self._process = SideProcess(self._program, self._task)
            try:
                self._accept(self._exchange(self._process, self._setup, at_start=True))
            except BaseException:
                self._end()
                raise
        return self._process

    def _exchange(self, process: SideProcess, message: object, *, at_start: bool = False) -> Reply:
        if self._closed:  # Meanwhile: `close` may not have seen the process, and waits for the turn.
            self._end()
            raise self._when_closed()
        try:
            return process.ask(message, self._reply)
        except (OSError, EOFError):
            status = None if self._closed else process.status
        self._end()
        raise self._when_closed() if status is None else Ended(status, at_start=at_start)

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _program(module: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module)


def half_a_pair(error: UnicodeEncodeError) -> str:
    """Return what is wrong with a message that has half of a surrogate pair, as description of a field."""
    return f"holds half of a surrogate pair, which is not valid text: {error.object[error.start]!r}"
