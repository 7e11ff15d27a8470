"""Calls the parser's library, and converts whatever it raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace_proto.pure.faults import is_fault

PANIC = "a defect of the parser"
"""Prefix of the text of a panic."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class LibraryFailed(Exception):
    """The library failed; the text is the library's."""


def call_library(call: Callable[_Arguments, _Result], *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
    """Call the library.

    Raises:
        LibraryFailed: it raised or panicked; a panic is not an `Exception`.
    """
    try:
        return call(*args, **options)
    except BaseException as error:
        if not is_fault(error):
            raise
        raise LibraryFailed(str(error) if isinstance(error, Exception) else f"{PANIC}: {error}") from error
