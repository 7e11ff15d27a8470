"""Errors and warnings in the words of another system: names without a counterpart, and our names of its fields."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, NoReturn

from headrace.errors import InvalidRequestError


def refuse_name(module: str, name: str, refused: Mapping[str, str]) -> NoReturn:
    """Raise for a name that a module does not have; a module's `__getattr__` ends with it.

    Args:
        module: name of the module.
        name: name that was asked for.
        refused: what to do instead of the other system's names that have no counterpart.

    Raises:
        ImportError: the name has no counterpart; the message says what to do instead.
        AttributeError: the other system has no such name either.
    """
    if name in refused:
        # An AttributeError would lose its text in "from … import …".
        raise ImportError(f"{module} has no {name}: {refused[name]}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def not_supported(field: str, value: Any, advice: str) -> InvalidRequestError:
    """Return the error for a value of another system's field that has no counterpart."""
    violation = {"field": field, "description": "is not supported"}
    return InvalidRequestError(
        f"{field} = {value!r} is not supported: {advice}",
        reason="NOT_SUPPORTED",
        details={"field_violations": [violation]},
    )


def matched(given: Mapping[str, Any], unmatched: Mapping[str, tuple[tuple[Any, ...], str]]) -> dict[str, Any]:
    """Return the fields that have a counterpart.

    Args:
        given: fields of the other system.
        unmatched: those without a counterpart: the values that they may have, and what to do instead of another.

    Raises:
        InvalidRequestError: a field without a counterpart has another value.
    """
    for name in unmatched.keys() & given.keys():
        allowed, advice = unmatched[name]
        if given[name] not in (None, *allowed):
            raise not_supported(name, given[name], advice)
    return {name: value for name, value in given.items() if name not in unmatched}


def in_their_names(error: InvalidRequestError, theirs: Mapping[str, str]) -> InvalidRequestError:
    """Return an error of a request or an install with the other system's names of fields before ours.

    Args:
        error: the error.
        theirs: our names of fields, by those of the other system.
    """
    message = error.message
    for name, ours in theirs.items():
        message = re.sub(rf"(^|; ){re.escape(ours)}(?!\w)", rf"\g<1>{name} ({ours})", message)
    return type(error)(
        message,
        reason=error.reason,
        request_id=error.request_id,
        details=error.details,
        retry_after=error.retry_after,
    )


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn of the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headrace."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
