"""Printing: answers alone to stdout; notes and errors to stderr, a line each.

Lines are never wrapped: a terminal does that by itself, and a pipe receives them whole.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.words import in_commands

_FAILING = ("strict", "surrogateescape")
"""Python's default error handlers; any other one was chosen by the user and stays."""


class _Line:
    """State of stdout: whether the last line of the answer still lacks its line break."""

    def __init__(self) -> None:
        self.begun = False


_line = _Line()


def say(text: str) -> None:
    """Print a piece of an answer, unchanged.

    Raises:
        BrokenPipeError: the reader of the pipe is gone, or stdout was closed from the start.
    """
    if sys.stdout is None:
        raise BrokenPipeError("stdout is closed")
    sys.stdout.write(text)
    sys.stdout.flush()
    _line.begun = not text.endswith("\n") if text else _line.begun


def end_line() -> None:
    """Print a line break if an answer broke off within a line."""
    if _line.begun:
        say("\n")


def show_everything() -> None:
    """Print characters that stdout's encoding lacks as escapes, as stderr does, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in _FAILING:
        sys.stdout.reconfigure(errors="backslashreplace")


def note(text: str, style: str = "") -> None:
    """Print a line to stderr.

    Args:
        text: the line.
        style: style on a terminal, such as "dim" or "red".
    """
    if sys.stderr is None:
        return
    if _line.begun and _same_stream():
        sys.stderr.write("\n")  # A note begins on a line of its own.
        _line.begun = False
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False).print(text, style=style, soft_wrap=True)
    else:
        sys.stderr.write(f"{text}\n")


def _same_stream() -> bool:
    """Return whether stdout and stderr are the same terminal, file or pipe."""
    try:
        out, errors = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, AttributeError):  # Closed, or in memory.
        return False
    return (out.st_dev, out.st_ino) == (errors.st_dev, errors.st_ino)


def complain(text: str) -> None:
    """Print an error."""
    note(f"headrace: {text}", "red")


class _Notes(logging.Handler):
    """A log handler that prints records as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"headrace: {in_commands(record.getMessage(), '')}", "yellow")


@contextmanager
def log_as_notes() -> Iterator[None]:
    """Print the client library's warnings as notes within the context."""
    logger, handler = logging.getLogger("headrace"), _Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def give_up_stdout() -> None:
    """Send further output to /dev/null after a broken pipe; else Python fails again when it flushes at its exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
