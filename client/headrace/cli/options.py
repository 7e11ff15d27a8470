"""Fields on the command line: FIELD=VALUE."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from headrace._base.foreign_names import our_name
from headrace._values.fill import unknown_name


def read_options(options: Sequence[str], known: Collection[str]) -> dict[str, Any]:
    """Fields by name. A value is JSON where it can be read as such, else the text itself.

    Args:
        options: what was given.
        known: the fields that there are.

    Raises:
        ValueError: an option without "=", or a field given twice.
        TypeError: there is no such field; close ones are listed.
    """
    fields: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ValueError(f'option "{option}": write FIELD=VALUE, such as temperature=0.7')
        if name not in known:
            raise unknown_name(f'option "{option}": there is no field "{name}"', name, sorted(known))
        if name in fields:
            raise ValueError(f'option "{option}": {name} is given twice')
        fields[name] = _value(value)
    return fields


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def advice_for_flag(flag: str, known: Collection[str]) -> str:
    """What to write for a flag that is a field: "--max-tokens" is -o max_new_tokens=…; "" where it is none."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    field = name if name in known else our_name(name, known)
    return f"; fields are options: -o {field}=VALUE" if field is not None and flag.startswith("--") else ""
