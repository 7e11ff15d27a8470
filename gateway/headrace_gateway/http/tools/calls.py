"""Calls of tools, and the forms in which a text may be some."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

_NAME = re.compile(r"[\w.-]+")


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text:.64} is no number of JSON")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _refuse(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _loads(text: str) -> Any:
    """Return the value of a text. Raise ValueError if it is no JSON, also for numbers that JSON does not have."""
    return _DECODER.decode(text)


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
        name: of the tool.
        arguments: one JSON object, as text.
    """

    name: str
    arguments: str


def calls_in(text: str) -> Sequence[Call]:
    """Return the calls that a text consists of; none if it is anything else.

    Forms: one JSON object or several, with semicolons between them; a JSON list of them; and NAME[ARGS]{…}, repeated.
    Arguments are called "arguments" or "parameters".
    """
    text = text.strip()
    if "[ARGS]" in text:
        return _named(text)
    try:
        objects = _loads(text) if text.startswith("[") else _objects(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call_of(one) for one in objects]
    return [] if None in calls else [call for call in calls if call is not None]


def _named(text: str) -> Sequence[Call]:
    """Return the calls of the form NAME[ARGS]{…}, with the mark of calls between them; none if one is anything else."""
    calls = []
    for part in filter(None, map(str.strip, text.split("[TOOL_CALLS]"))):
        name, _, arguments = part.partition("[ARGS]")
        if not _NAME.fullmatch(name.strip()) or not _is_object(arguments):
            return []
        calls.append(Call(name.strip(), arguments))
    return calls


def _objects(text: str) -> list[Any]:
    """Return the JSON objects of a text, with semicolons between them. Raise ValueError if there is anything else."""
    found, at = [], 0
    while at < len(text):
        one, at = _DECODER.raw_decode(text, at)
        found.append(one)
        while at < len(text) and text[at] in " \t\r\n;":
            at += 1
    return found


def call_in(text: str) -> Call | None:
    """Return the call that a text is; None if it is none."""
    try:
        one = _loads(text)
    except (ValueError, RecursionError):
        return None
    return _call_of(one)


def _call_of(one: Any) -> Call | None:
    if not isinstance(one, dict) or not isinstance(one.get("name"), str):
        return None
    arguments = one.get("arguments", one.get("parameters", {}))
    if isinstance(arguments, dict):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except RecursionError:  # It takes some more stack than reading them.
            return None
    elif not isinstance(arguments, str) or not _is_object(arguments):
        return None
    return Call(one["name"], arguments) if _is_text(one["name"] + arguments) else None


def _is_text(text: str) -> bool:
    """True if a text can be sent: it has no halves of surrogate pairs, which JSON can escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_object(text: str) -> bool:
    try:
        return isinstance(_loads(text), dict)
    except (ValueError, RecursionError):
        return False
