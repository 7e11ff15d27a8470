"""Signals that end `make run`, and the end of its terminal."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import threading
from types import FrameType

from terminal import print_about

_END_LIMIT = 60.0
"""Seconds from a signal until everything is killed."""


class Signalled(BaseException):
    """A signal requested the end.

    Attributes:
        number: number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Handles SIGINT, SIGTERM and SIGHUP: the first raises Signalled, a SIGINT after it ends everything at once.

    Only SIGINT, since a single request may send the others several times: a closed terminal sends SIGHUP and so does
    its shell, and make forwards a SIGTERM that the whole process group got.
    """

    def __init__(self) -> None:
        self._came = False

    def take(self) -> None:
        """Handle the signals from now on, except those that the parent made this process ignore."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # by nohup, or by a script for its background jobs
                signal.signal(number, self._take)

    def watch_terminal(self) -> None:
        """Treat the end of the terminal as a SIGHUP, if this process is in its foreground.

        Without a shell between the terminal and make, only make gets the signal, and waits for this process.
        """
        with contextlib.suppress(OSError):
            terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
            if os.tcgetpgrp(terminal) == os.getpgrp():
                threading.Thread(target=_hang_up, args=(terminal,), daemon=True).start()

    def _take(self, number: int, frame: FrameType | None) -> None:
        if not self._came:
            self._came = True
            faulthandler.dump_traceback_later(_END_LIMIT, exit=True)  # Whatever hangs; the servers are tied to it.
            raise Signalled(number)
        if number == signal.SIGINT:
            print_about("headrace:", "ended at once")
            os._exit(128 + number)  # The servers are tied to this process.


def _hang_up(terminal: int) -> None:
    poll = select.poll()
    poll.register(terminal, 0)  # No events requested: a hang-up is always reported.
    poll.poll()
    os.kill(os.getpid(), signal.SIGHUP)
