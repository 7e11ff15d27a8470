"""What of JSON Schema can be enforced where arguments are not written as JSON."""

from __future__ import annotations

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


def resolved(function: Function, schema: Any) -> Any:
    """Return the schema that a reference leads to.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it leads nowhere.
    """
    for _ in range(_MAX_STEPS):
        if not isinstance(schema, dict) or "$ref" not in schema:
            break
        pointer, found = schema["$ref"], function.parameters
        for part in pointer.removeprefix("#/").split("/") if isinstance(pointer, str) else ():
            found = found.get(part, {}) if isinstance(found, dict) else {}
        schema = found
    if schema is True or (isinstance(schema, dict) and "$ref" not in schema):
        return schema
    raise refused(f"of {function.name} cannot be strict: a part of its parameters is no schema")
