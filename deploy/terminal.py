"""Messages of `make run` at the terminal: short lines on stderr. Standard output is for answers.

Standard library only: it also runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import TracebackType
from typing import Self

_STDERR = 2
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 30.0
"""Seconds between two lines of one step."""


def print_line(text: str) -> None:
    """Print a line, unless the terminal is gone. Safe in threads and signal handlers."""
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"{text}\n".encode(errors="backslashreplace"))


def print_about(who: str, text: str) -> None:
    """Print a line about one component."""
    print_line(f"{who:<11} {text}")


class Step:
    """A step that takes a while: printed when it begins, and again with its seconds while it lasts.

    Args:
        who: the component.
        what: description of the step.
    """

    def __init__(self, who: str, what: str) -> None:
        self._who = who
        self._what = what
        self._detail = ""
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def now(self, what: str, detail: str = "") -> None:
        """Print what is being done now, if it changed. The detail is part of the lines that follow."""
        self._detail = detail
        if what != self._what:
            self._what = what
            print_about(self._who, what)

    def __enter__(self) -> Self:
        print_about(self._who, self._what)
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticker.join()

    def _tick(self) -> None:
        pause = _FIRST_PAUSE
        while not self._ended.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE)
            words = [self._what, self._detail, f"{self.seconds:.0f} s"]
            print_about(self._who, ", ".join(word for word in words if word))
