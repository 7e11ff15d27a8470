"""Fields on the command line: FIELD=VALUE."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from headrace_proto.pure.strict_json import BadJson, NotJson, read_json

from headrace._base.foreign_names import our_name
from headrace._values.refusals import unknown_name


def read_options(options: Sequence[str], known: Collection[str]) -> dict[str, Any]:
    """Return the fields by name. A value that is valid JSON is parsed; any other is the text itself.

    Args:
        options: values of -o.
        known: names of the fields that exist.

    Raises:
        ValueError: an option has no "=", or a field, or a key within JSON, is given twice; a number is none.
        TypeError: a field does not exist; similar names are listed.
    """
    fields: dict[str, Any] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not name:
            raise ValueError(f'option "{option}": write FIELD=VALUE, such as temperature=0.7')
        if name not in known:
            raise unknown_name(f'option "{option}": unknown field "{name}"', name, sorted(known))
        if name in fields:
            raise ValueError(f'option "{option}": {name} is given twice')
        fields[name] = _value(option, value)
    return fields


def _value(option: str, text: str) -> Any:
    try:
        return read_json(text)
    except NotJson:
        return text
    except BadJson as error:
        raise ValueError(f'option "{option}" {error}') from None


def advice_for_flag(flag: str, known: Collection[str]) -> str:
    """Return the advice for a flag that is a field, such as -o max_new_tokens=… for "--max-tokens"; else ""."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    field = name if name in known else our_name(name, known)
    return f"; fields are options: -o {field}=VALUE" if field is not None and flag.startswith("--") else ""
