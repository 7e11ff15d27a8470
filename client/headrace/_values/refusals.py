"""Errors of fields that callers got wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from headrace_proto.pure.suggestions import did_you_mean

from headrace._base.caller_words import argument
from headrace._base.foreign_names import our_name
from headrace.errors import InvalidRequestError


def unknown_name(complaint: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for an unknown name, with similar names."""
    return TypeError(complaint + _advice(name, known))


def unknown_key(path: str, name: object, known: Iterable[str]) -> InvalidRequestError:
    """Return the error for a mapping with an unknown key."""
    names = list(known)
    text = f"unknown key {name!r}; the keys are {', '.join(names)}" if names else f"unknown key {name!r}; it takes none"
    text += _advice(name, names) if isinstance(name, str) else ""
    violation = {"field": f"{path}.{name}", "description": text}
    return InvalidRequestError(f"{argument(path)}: {text}", details={"field_violations": [violation]})


def _advice(name: str, known: Iterable[str]) -> str:
    names = list(known)
    ours = our_name(name, names)
    return f"; did you mean {ours}?" if ours is not None else did_you_mean(name, names)


def invalid(path: str, value: object, allowed: str) -> InvalidRequestError:
    """Return the error for an invalid value: it names the field, the value, and what is allowed."""
    shown = reprlib.repr(value)
    violation = {"field": path, "description": f"{shown}: must be {allowed}"}
    message = f"{argument(path)} = {shown}: must be {allowed}"
    return InvalidRequestError(message, details={"field_violations": [violation]})
