"""What of JSON Schema can be enforced where arguments are not written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_engine.guided.calls.wanted import Function
from headrace_engine.guided.refusal import refused

TYPES = ("string", "number", "boolean", "null", "array", "object")
"""The types of JSON."""

_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment"}
)
_MAX_STEPS = 20


def refuse_more(function: Function, schema: dict[str, Any], known: set[str]) -> None:
    """Refuse keywords that a call cannot be held to in its format.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT.
    """
    more = sorted(schema.keys() - known - _NOTES)
    if more:
        text = f"{more[0][:64]} cannot be enforced in the format in which this model writes calls"
        raise refused(f"of {function.name} cannot be strict: {text}")


def values_of(schema: dict[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists; None: it lists none."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def properties_of(function: Function, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of an object, those that must be there first.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: they are no properties, or one that must be there is none of them.
    """
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise refused(f"of {function.name} cannot be strict: properties must be an object")
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        raise refused(f"of {function.name} cannot be strict: required must be a list of strings")
    if lacking := [key for key in required if key not in properties]:
        raise refused(f'of {function.name} cannot be strict: "{lacking[0][:64]}" is required, but no property')
    return {key: properties[key] for key in sorted(properties, key=lambda key: key not in required)}


def types_of(function: Function, schema: dict[str, Any]) -> Sequence[str]:
    """Return the types that a schema allows.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: type is neither a string nor a list of some.
    """
    kinds = schema.get("type", TYPES)
    if isinstance(kinds, str):
        return (kinds,)
    if not kinds or not isinstance(kinds, (list, tuple)) or not all(isinstance(kind, str) for kind in kinds):
        raise refused(f"of {function.name} cannot be strict: type must be a string or a list of strings")
    return kinds


def alternatives_of(function: Function, schema: dict[str, Any]) -> list[Any]:
    """Return the alternatives of an anyOf.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is no list, or an empty one.
    """
    found = schema["anyOf"]
    if not isinstance(found, list) or not found:
        raise refused(f"of {function.name} cannot be strict: anyOf must be a list of schemas")
    return found


def resolved(function: Function, schema: Any) -> Any:
    """Return the schema that a reference leads to.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it leads nowhere.
    """
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        schema = _at(schema["$ref"], function.parameters)
    if schema is True or (isinstance(schema, dict) and "$ref" not in schema):
        return schema
    raise refused(f"of {function.name} cannot be strict: a part of its parameters is no schema")


def _at(pointer: Any, root: Any) -> Any:
    """Return the part of a schema that a pointer leads to; None: there is none."""
    if not isinstance(pointer, str) or not pointer.startswith("#"):
        return None
    found = root
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found
