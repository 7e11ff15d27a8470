"""The keywords of JSON Schema that can be enforced where arguments are not written as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_engine.errors import InvalidArgument
from headrace_engine.guided.calls.wanted import Function
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.schema_walk import referred

TYPES = ("string", "number", "boolean", "null", "array", "object")
"""The types of JSON."""

_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment"}
)


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


def properties_of(function: Function, schema: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the properties of an object, and the names of those that must be there.

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
    return properties, frozenset(required)


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


class References:
    """The references within the parameters of a function.

    Args:
        function: the function.
        root: its parameters.
    """

    def __init__(self, function: Function, root: dict[str, Any]) -> None:
        self._function, self._root = function, root
        self._targets: dict[str, Any] = {}

    def resolved(self, schema: Any) -> Any:
        """Return the schema that a reference leads to, if need be through others.

        Raises:
            InvalidArgument: BAD_RESPONSE_FORMAT: it leads nowhere, in a circle, or stands beside other keywords.
        """
        passed: dict[str, None] = {}
        while isinstance(schema, dict) and "$ref" in schema:
            refuse_more(self._function, schema, {"$ref"})
            pointer = schema["$ref"]
            if not isinstance(pointer, str) or pointer in passed:
                raise self._no_schema()
            passed[pointer] = None
            schema = self._targets[pointer] if pointer in self._targets else referred(self._root, pointer)
        if schema is not True and not isinstance(schema, dict):
            raise self._no_schema()
        self._targets |= dict.fromkeys(passed, schema)
        return schema

    def _no_schema(self) -> InvalidArgument:
        return refused(f"of {self._function.name} cannot be strict: a part of its parameters is no schema")
