"""JSON as clients send it, read so that nothing of it is dropped or changed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

MAX_DIGITS = 64
"""Maximum characters of an integer: the time to read one grows with the square of its length."""

_SHOWN = 64
"""Maximum characters of a key or a number in an error."""

_LAST = 8
"""Maximum keys of a path in an error."""

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")

Trail = tuple["Trail", str | int] | None
"""The keys and indices that lead to a value, the last one first."""


class BadJson(ValueError):
    """A text cannot be read as JSON, or not without loss. Its message follows the name of the text: "is not JSON: …".

    Attributes:
        path: path of a key that is given twice in one object, such as "properties.a"; "": none is.
    """

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.path = path


class NotJson(BadJson):
    """A text is not JSON at all."""


class NestedTooDeep(BadJson):
    """A text is nested deeper than Python reads: some 1,000 levels."""


class _Ambiguous(dict[str, Any]):
    """An object in which a key is given twice."""

    twice = ""


def read_json(text: str) -> Any:
    """Return the value of a text.

    Raises:
        NestedTooDeep: it is nested deeper than Python reads.
        NotJson: it is not JSON.
        BadJson: it has NaN or Infinity, which are no part of JSON; a key is given twice in one object; a number is out
            of range; half a surrogate pair is escaped.
    """
    ambiguous: list[_Ambiguous] = []
    try:
        value = json.loads(
            text,
            object_pairs_hook=partial(_object, ambiguous),
            parse_float=_finite,
            parse_int=_integer,
            parse_constant=_refuse,
        )
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except BadJson:
        raise
    except UnicodeEncodeError:
        raise BadJson("has half a surrogate pair, which is no character") from None
    except RecursionError:
        raise NestedTooDeep("is nested too deep") from None
    except ValueError as error:
        raise NotJson(f"is not JSON: {error}") from None
    if ambiguous:
        path = _path_of_key_given_twice(value)
        raise BadJson(f"gives {path} twice", path)
    return value


def _object(ambiguous: list[_Ambiguous], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    marked, seen = _Ambiguous(found), set[str]()
    for name, _ in pairs:
        if name in seen:
            marked.twice = name
            break
        seen.add(name)
    ambiguous.append(marked)
    return marked


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise BadJson(f"has the number {text[:_SHOWN]}, which is out of range")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise BadJson(f"has the number {text[:_SHOWN]}…, which is out of range")
    return int(text)


def _refuse(text: str) -> NoReturn:
    raise BadJson(f"has {text}, which is no number of JSON")


def _path_of_key_given_twice(value: Any) -> str:
    """Return the path of the first key that is given twice."""
    todo: list[tuple[Trail, Any]] = [(None, value)]
    while todo:
        trail, one = todo.pop()
        if isinstance(one, _Ambiguous):
            return _written((trail, one.twice))
        inner = [((trail, key), part) for key, part in _entries(one) if isinstance(part, dict | list)]
        todo += reversed(inner)
    return ""


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else enumerate(value)


def _written(trail: Trail) -> str:
    """Return the last keys of a path, each cut."""
    keys: list[str] = []
    while trail is not None and len(keys) < _LAST:
        trail, key = trail
        keys.append(f"[{key}]" if isinstance(key, int) else f".{key[:_SHOWN]}")
    return ("…" if trail is not None else "") + "".join(reversed(keys)).removeprefix(".") or '""'
