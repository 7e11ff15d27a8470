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

_WALKED = 16_384
"""Maximum values that are looked at for the path of a key that is given twice; beyond, the key alone is named."""

_MOST_AMBIGUOUS = 256
"""Objects that give a key twice, after which no more of a text is read."""

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")

_WHOLE_PAIRS = re.compile(
    r"(?:[^\\]++|\\(?!u[dD][89a-fA-F]).|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+", re.DOTALL
)
"""JSON in which no half of a surrogate pair is escaped alone."""


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
    except BadJson:
        raise
    except RecursionError:
        raise NestedTooDeep("is nested too deep") from None
    except ValueError as error:
        raise NotJson(f"is not JSON: {error}") from None
    if _HALF_PAIR.search(text) and not _WHOLE_PAIRS.fullmatch(text):
        raise BadJson("has half a surrogate pair, which is no character")
    if ambiguous:
        raise _given_twice(_path_of_key_given_twice(value) or _key(ambiguous[0]))
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
    if len(ambiguous) > _MOST_AMBIGUOUS:
        raise _given_twice(_key(ambiguous[0]))
    return marked


def _given_twice(path: str) -> BadJson:
    return BadJson(f"gives {path} twice", path)


def _key(one: _Ambiguous) -> str:
    """Return the key that an object gives twice, as a path whose beginning is left out."""
    return "…" + one.twice[:_SHOWN].encode(errors="replace").decode()  # The text may yet have half a surrogate pair.


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
    """Return the path of the first key that is given twice; "": it is beyond the values that are looked at."""
    if isinstance(value, _Ambiguous):
        return _written([value.twice])
    trail: list[str | int] = []
    walks = [_entries(value)]
    for _ in range(_WALKED):
        key, one = next(walks[-1], (None, None))
        if key is None:
            walks.pop()
            trail.pop()
        elif isinstance(one, _Ambiguous):
            return _written([*trail, key, one.twice])
        elif isinstance(one, dict | list):
            trail.append(key)
            walks.append(_entries(one))
    return ""


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Return an iterator over the keys or indices of an object or a list, each with its value."""
    return iter(value.items()) if isinstance(value, dict) else enumerate(value)


def _written(trail: list[str | int]) -> str:
    """Return the last keys of a path, each cut."""
    keys = [f"[{key}]" if isinstance(key, int) else f".{key[:_SHOWN]}" for key in trail[-_LAST:]]
    return ("…" if len(trail) > _LAST else "") + "".join(keys).removeprefix(".") or '""'
