"""Calls of the parser's library, whatever it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace_proto.pure.faults import is_fault

PANIC = "a defect of the parser"
"""What the text of a panic begins with."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class LibraryFailed(Exception):
    """The library could not do what it was asked for; the text is the library's."""


def ask(call: Callable[_Arguments, _Result], *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
    """Return what a call of the library returns.

    Raises:
        LibraryFailed: it raised, or panicked: a panic is no `Exception`.
    """
    try:
        return call(*args, **options)
    except BaseException as error:
        if not is_fault(error):
            raise
        raise LibraryFailed(str(error) if isinstance(error, Exception) else f"{PANIC}: {error}") from error
