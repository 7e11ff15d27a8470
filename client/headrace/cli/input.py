"""Reading from stdin."""

from __future__ import annotations

import sys
from typing import TextIO


def at_terminal() -> bool:
    """Return whether stdin is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def read_line() -> str:
    """Return the next line with its line break; "" at the end.

    Raises:
        OSError: stdin was closed from the start.
    """
    return _stdin().readline()


def read_all() -> str:
    """Return everything up to the end of stdin.

    Raises:
        OSError: stdin was closed from the start.
    """
    return _stdin().read()


def _stdin() -> TextIO:
    if sys.stdin is None:
        raise OSError("stdin is closed: there is nothing to read")
    return sys.stdin
