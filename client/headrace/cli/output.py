"""What the command line prints: answers to stdout and nothing else there; what happens to stderr, a line each.

Lines are never wrapped: a terminal does that by itself, and a pipe gets them whole.
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
"""What Python does by default about a character that an encoding lacks; another way was chosen by somebody."""


class _Line:
    """Whether the last line of the answer on stdout still lacks its end."""

    def __init__(self) -> None:
        self.begun = False


_line = _Line()


def say(text: str) -> None:
    """Prints a piece of an answer, as it is.

    Raises:
        BrokenPipeError: nobody reads any more, or stdout was closed from the start.
    """
    if sys.stdout is None:
        raise BrokenPipeError("stdout is closed")
    sys.stdout.write(text)
    sys.stdout.flush()
    _line.begun = not text.endswith("\n") if text else _line.begun


def end_line() -> None:
    """Ends the line of an answer that breaks off, if it has one."""
    if _line.begun:
        say("\n")


def show_everything() -> None:
    """From now on, what the encoding of stdout lacks is shown in escapes, as on stderr: no answer is cut for it."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in _FAILING:
        sys.stdout.reconfigure(errors="backslashreplace")


def note(text: str, style: str = "") -> None:
    """Prints a line about what happens.

    Args:
        text: the line.
        style: how it looks on a terminal, such as "dim" or "red".
    """
    if sys.stderr is None:
        return
    if _line.begun and _both_in_one_place():
        sys.stderr.write("\n")  # A line about what happens begins at the left.
        _line.begun = False
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        Console(stderr=True, highlight=False, markup=False).print(text, style=style, soft_wrap=True)
    else:
        sys.stderr.write(f"{text}\n")


def _both_in_one_place() -> bool:
    """Whether stdout and stderr are the same terminal, file or pipe."""
    try:
        out, errors = os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno())
    except (OSError, AttributeError):  # Neither a closed one nor one in memory is a place.
        return False
    return (out.st_dev, out.st_ino) == (errors.st_dev, errors.st_ino)


def complain(text: str) -> None:
    """Prints what went wrong."""
    note(f"headrace: {text}", "red")


class _Notes(logging.Handler):
    """What the library logs is a note like others."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"headrace: {in_commands(record.getMessage(), '')}", "yellow")


@contextmanager
def log_as_notes() -> Iterator[None]:
    """While it lasts, warnings of the client's library are printed as notes."""
    logger, handler = logging.getLogger("headrace"), _Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def give_up_stdout() -> None:
    """After a write that nobody reads: Python would complain again when it flushes stdout at its exit."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
