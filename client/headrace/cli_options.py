"""Fields on the command line: FIELD=VALUE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def read_options(options: Sequence[str]) -> dict[str, Any]:
    """Fields by name. A value is JSON where it can be read as such, else the text itself.

    Raises:
        ValueError: an option without "=", or a field given twice.
    """
    fields: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ValueError(f'option "{option}": write FIELD=VALUE, such as temperature=0.7')
        if name in fields:
            raise ValueError(f'option "{option}": {name} is given twice')
        fields[name] = _value(value)
    return fields


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
