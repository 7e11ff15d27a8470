"""Prepares JSON Schemas for the parser's library, and warns of likely mistakes."""

from __future__ import annotations

import json
from typing import Any

from headrace_proto.pure.strict_json import BadJson, read_json

from headrace_engine.guided.refusal import refused
from headrace_engine.guided.schema_ends import Satisfiability
from headrace_engine.guided.schema_walk import depth_of, schemas_of

MAX_DEPTH = 100
"""Maximum nesting of lists and objects in a schema, as for the JSON of chats."""

_KEYWORDS = frozenset({
    "$schema", "$id", "$ref", "$defs", "$anchor", "$dynamicRef", "$dynamicAnchor", "$vocabulary", "$comment",
    "definitions", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "type",
    "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "properties", "patternProperties",
    "additionalProperties", "unevaluatedProperties", "propertyNames", "required", "minProperties", "maxProperties",
    "dependentRequired", "dependentSchemas", "dependencies", "items", "prefixItems", "additionalItems",
    "unevaluatedItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems", "minimum",
    "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format",
    "contentEncoding", "contentMediaType", "contentSchema", "x-guidance",
})  # fmt: skip
"""Keywords of which a schema must have one. Without any, it is usually wrapped in another object, and allows anything.

Some of these are refused later, by name and with advice (`refusal.py`).
"""

_SHOWN = 20
"""Maximum number of unchecked formats named in warnings."""

FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
)
"""String formats that are enforced; JSON Schema treats all others as annotations."""


def read_schema(text: str) -> tuple[str, list[str]]:
    """Return a schema as the library should read it, and warnings about it.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: it is not a schema, or is unsatisfiable.
    """
    schema = _parsed(text)
    if schema is True:
        return "{}", []  # Equivalent, and the library reads it.
    _check_kind(schema)
    if depth_of(schema) > MAX_DEPTH:
        raise refused(
            f"json_schema has objects and lists nested {depth_of(schema)} deep; allowed: at most {MAX_DEPTH} "
            "(use $defs and $ref to keep it flat)"
        )
    endless = endless_parts(schema)
    unchecked = _drop_unchecked(schema)
    return (json.dumps(schema) if unchecked else text), [*_unchecked_texts(unchecked), *endless]


def _parsed(text: str) -> Any:
    try:
        return read_json(text)
    except BadJson as error:
        raise refused(f"json_schema {error}") from None


def _check_kind(schema: Any) -> None:
    if schema is False:
        raise refused("json_schema = false allows nothing; allowed: true, or an object")
    if not isinstance(schema, dict):
        raise refused("json_schema must be an object or a boolean")
    if schema and not schema.keys() & _KEYWORDS:
        has = ", ".join(sorted(schema))
        raise refused(
            f"json_schema has no keyword of JSON Schema, only {has}: give the schema itself, without a wrapper"
        )


def endless_parts(schema: dict[str, Any]) -> list[str]:
    """Return warnings about unsatisfiable parts.

    Raises:
        InvalidArgument: BAD_RESPONSE_FORMAT: the schema is unsatisfiable as a whole.
    """
    empty = Satisfiability(schema).unsatisfiable()
    if "#" in empty:
        inner = next((pointer for pointer in empty if pointer != "#"), "#")
        raise refused(f"json_schema allows nothing: {_why_unsatisfiable(inner)}")
    return [f"json_schema: {_why_unsatisfiable(pointer)}; a text that enters it never ends" for pointer in empty[:1]]


def _why_unsatisfiable(pointer: str) -> str:
    return f"nothing matches {pointer}: it requires itself, or a part that nothing matches"


def _drop_unchecked(schema: dict[str, Any]) -> list[str]:
    """Remove the formats that the library does not know, and return them, each once."""
    found: dict[str, None] = {}
    for pointer, one in schemas_of(schema):
        if "x-guidance" in one:
            raise refused(f"json_schema has x-guidance (at {pointer}), which has no effect here: leave it out")
        name = one.get("format")
        if isinstance(name, str) and name not in FORMATS:
            found[name] = None
            del one["format"]
    return list(found)


def _unchecked_texts(names: list[str]) -> list[str]:
    known = ", ".join(sorted(FORMATS - {"unknown"}))
    texts = [f"json_schema: format {name[:100]} is not checked; known: {known}" for name in names[:_SHOWN]]
    rest = len(names) - _SHOWN
    return [*texts, f"json_schema: {rest} more formats are not checked"] if rest > 0 else texts
