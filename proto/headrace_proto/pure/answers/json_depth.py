"""Whether a text is JSON, however deep its lists and objects are nested."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r'[ \t\n\r]*(?:(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")'
    r"|(?P<scalar>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)|(?P<sign>[][{},:]))[ \t\n\r]*"
)
_CLOSES = {"{": "}", "[": "]"}


def is_json(text: str) -> bool:
    """True if a text is a value of JSON. Takes time by its length, and memory by its depth."""
    closers: list[str] = []
    value, key, after = True, False, False  # What may come: a value, a key, or what follows a value.
    begun = False  # A list or an object has just begun, and may end.
    for kind, token in _tokens(text):
        if value and token in _CLOSES:
            closers.append(_CLOSES[token])
            value, key, after, begun = token == "[", token == "{", False, True
        elif (after or begun) and closers and token == closers[-1]:
            closers.pop()
            value, key, after, begun = False, False, True, False
        elif after and closers and token == ",":
            value, key, after = closers[-1] == "]", closers[-1] == "}", False
        elif key and kind == "string":
            value, key, after, begun = False, False, False, False
        elif not (value or key or after) and token == ":":
            value = True
        elif value and kind in ("string", "scalar"):
            value, key, after, begun = False, False, True, False
        else:
            return False
    return after and not closers


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kinds and texts of tokens; where there is none, one of no kind."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            yield "", ""
            return
        at = found.end()
        yield str(found.lastgroup), found[str(found.lastgroup)]
