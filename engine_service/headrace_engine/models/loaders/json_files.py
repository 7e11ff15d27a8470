"""Read JSON objects at a bounded cost, with errors that name the file and the position."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel, shown
from headrace_engine.models.loaders.opening import read_model_file

_MAX_BYTES = 64 * 2**20
"""Maximum size of a file that is read as a whole, in bytes: indexes of shards have 10 MB."""

MAX_VALUES = 2**20
"""Maximum number of values in a file: a checkpoint of 100,000 tensors in one file has 900,000."""

_MAX_DEPTH = 64
_MAX_DIGITS = 100
"""Maximum digits of an integer: configs contain 1e30 in digits, and the time to parse grows with their square."""

_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(path: Path, most: int = _MAX_BYTES) -> dict[str, Any]:
    """Read the JSON object in a file.

    Args:
        most: maximum size of the file, in bytes.

    Raises:
        BadModel: it cannot be read, or as `parse_object`.
    """
    return parse_object(read_model_file(path, most), path.name)


def parse_object(content: bytes, source: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        source: the file's name, for messages.

    Raises:
        BadModel: it is not JSON or not an object, has a duplicate key, too many or too deeply nested values, a number
            with too many digits, or an unpaired surrogate.
    """
    _check_count(content, source)
    try:
        text = content.decode(json.detect_encoding(content))
        hooks: dict[str, Any] = {"object_pairs_hook": partial(_unique, source=source), "parse_int": _integer}
        value = json.loads(text, **hooks)
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:
        raise BadModel(f"{source}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadModel(f"{source}: must hold a JSON object, not {type(value).__name__}")
    _check_depth(value, source)
    if _HALF_PAIR.search(text):
        _check_characters(value, source)
    return value


def _check_count(content: bytes, source: str) -> None:
    """Check the number of values before parsing: each takes many times the memory of its bytes."""
    most = content.count(b",") + content.count(b"[") + content.count(b"{")
    if most > MAX_VALUES:
        raise BadModel(f"{source}: holds about {most} values; allowed: at most {MAX_VALUES}")


def _check_depth(value: object, source: str) -> None:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _items(outer) if isinstance(inner, dict | list)]
        if not level:
            return
    raise _too_deep(source)


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _too_deep(source: str) -> BadModel:
    return BadModel(f"{source}: values are nested more than {_MAX_DEPTH} deep")


def _check_characters(value: object, source: str) -> None:
    """Refuse unpaired surrogates: the contents are returned to callers as text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadModel(f"{source}: a string holds half a surrogate pair, which is no character") from None


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits; allowed: at most {_MAX_DIGITS}")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise BadModel(f"{source}: {shown(_twice(pairs))} stands twice in one object")
    return content


def _twice(pairs: list[tuple[str, Any]]) -> str:
    return next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
