"""Reading JSON objects, with errors that name the file and the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headrace_engine.errors import BadModel

_MAX_BYTES = 256 * 2**20
"""More than any config or tokenizer file has."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        BadModel: it cannot be read, is not JSON, is no object, or names a key twice.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadModel(f"{path.name}: {path.stat().st_size} bytes are too many for a JSON file")
        return parse_object(path.read_bytes(), path.name)
    except OSError as error:
        raise BadModel(f"{path.name}: cannot be read: {error.strerror}") from error


def parse_object(content: bytes, source: str) -> dict[str, Any]:
    """The JSON object in some bytes.

    Args:
        source: the file's name, for messages.

    Raises:
        BadModel: it is not JSON, is no object, or names a key twice.
    """
    try:
        value = json.loads(content, object_pairs_hook=lambda pairs: _unique(pairs, source))
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{source}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadModel(f"{source}: must hold a JSON object, not {type(value).__name__}")
    return value


def _unique(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadModel(f"{source}: {twice!r} stands twice in one object")
    return content
