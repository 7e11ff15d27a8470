"""What the command line reads from stdin."""

from __future__ import annotations

import sys
from typing import TextIO


def at_terminal() -> bool:
    """Whether somebody types what is read."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_line() -> str:
    """The next line with its end; "" where there is none.

    Raises:
        OSError: stdin was closed from the start.
    """
    return _stdin().readline()


def read_all() -> str:
    """All that is left.

    Raises:
        OSError: stdin was closed from the start.
    """
    return _stdin().read()


def _stdin() -> TextIO:
    if sys.stdin is None:
        raise OSError("stdin is closed, so there is nothing to read from")
    return sys.stdin
