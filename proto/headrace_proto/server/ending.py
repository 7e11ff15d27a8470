"""Termination of a server's process: handles signals, and ends the process in time even if it hangs."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

GRACE = 10.0
"""Seconds after the drain limit within which the process must end."""

CUT_GRACE = 3.0
"""Seconds after a second signal within which the process must end."""

LAST_WORD = 1.0
"""Seconds for writing the last log line, which may block forever; the system timer ends the process a second later."""

_LONG = 1e6
_STDERR = 2

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Ending:
    """Handles SIGTERM and SIGINT in a thread of its own, and ends the process if it does not end by itself in time.

    A hanging event loop handles no signal, and hanging threads keep a process from ending. So two watchdogs run once
    the end has begun: that thread, and a system timer that does not need the interpreter's lock.

    Args:
        limit: seconds that the process may take to end after the first signal.
        on_signal: called in the event loop at each signal.
        report: logs that the process did not end in time, given the names of its threads; may hang.
    """

    def __init__(self, limit: float, on_signal: Callable[[], None], report: Callable[[list[str]], None]) -> None:
        self._limit, self._on_signal, self._report = limit, on_signal, report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline: float | None = None
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)

    def take(self) -> None:
        """Handle the signals from now on. Call in the main thread, while its event loop runs."""
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)  # The signal's number is written to the socket.
            signal.siginterrupt(number, False)
        signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._hear, name="headrace-ending", daemon=True).start()

    def begin(self, seconds: float | None = None) -> None:
        """Require the process to end within `seconds` (None: the limit), or by an earlier deadline already set."""
        seconds = self._limit if seconds is None else seconds
        deadline = time.monotonic() + seconds
        if self._deadline is not None and self._deadline <= deadline:
            return
        self._deadline = deadline
        if seconds < _LONG:
            faulthandler.dump_traceback_later(seconds + 2 * LAST_WORD, exit=True, file=_STDERR)
        with suppress(BlockingIOError):  # A full socket wakes the thread as well.
            self._theirs.send(b"\0")

    def _hear(self) -> None:
        heard = 0
        while True:
            for _ in range(self._signals()):
                heard += 1
                self.begin(None if heard == 1 else CUT_GRACE)
                self._notify()

    def _notify(self) -> None:
        assert self._loop is not None, "signals are heard once they are taken"
        with suppress(RuntimeError):  # The loop is closed: the process is ending.
            self._loop.call_soon_threadsafe(self._on_signal)

    def _signals(self) -> int:
        """Wait for signals, and return how many came. Past the deadline, end the process instead."""
        left = _LONG if self._deadline is None else self._deadline - time.monotonic()
        if left <= 0:
            self._end()
        try:
            self._ours.settimeout(min(_LONG, left))
            return sum(number in SIGNALS for number in self._ours.recv(64))
        except TimeoutError:
            return 0

    def _end(self) -> NoReturn:
        threads = sorted(thread.name for thread in threading.enumerate())
        reporting = threading.Thread(target=self._report, args=(threads,), daemon=True)
        reporting.start()
        reporting.join(LAST_WORD)
        for child in _children():  # Most would end by themselves, but not a stopped one.
            os.kill(child, signal.SIGKILL)
        os._exit(1)


def _children() -> list[int]:
    """Return the ids of this process's children, if the system lists them."""
    lists = Path("/proc/self/task").glob("*/children")
    with suppress(OSError):
        return [int(number) for each in lists for number in each.read_text().split()]
    return []
