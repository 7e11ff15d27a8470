"""Walks the schemas within a JSON Schema, as opposed to property names and data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_ONE = (
    "not", "if", "then", "else", "additionalProperties", "unevaluatedProperties", "propertyNames", "items",
    "additionalItems", "unevaluatedItems", "contains", "contentSchema",
)  # fmt: skip
"""Keywords whose value is a schema."""

_SEVERAL = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
"""Keywords whose value is a list of schemas; `items` only in older drafts."""

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose value maps names to schemas."""


def depth_of(value: Any) -> int:
    """Return the nesting depth of lists and objects."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def schemas_of(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object schema once, with a pointer to it, including those reached only by a $ref."""
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [("#", root)]
    while todo:
        pointer, schema = todo.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield pointer, schema
        todo += reversed(list(_inner(pointer, schema)))
        target = schema.get("$ref")
        if isinstance(target, str):
            todo.append((target, referred(root, target)))


def referred(root: Any, reference: str) -> Any:
    """Return the target of a reference within a document; None if there is none, or it is elsewhere."""
    if not reference.startswith("#"):
        return None
    found = root
    for name in unquote(reference[1:]).split("/")[1:]:
        found = _entry(found, name.replace("~1", "/").replace("~0", "~"))
    return found if reference in ("#", "#/") or reference.startswith("#/") else None


def _entry(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, list) and name.isdecimal() and len(name) < 9 and int(name) < len(value):
        return value[int(name)]
    return None


def _inner(pointer: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for word in _ONE:
        if word in schema:
            yield f"{pointer}/{word}", schema[word]
    for word in _SEVERAL:
        if isinstance(schema.get(word), list):
            yield from ((f"{pointer}/{word}/{index}", one) for index, one in enumerate(schema[word]))
    for word in _NAMED:
        if isinstance(schema.get(word), dict):
            for name, one in schema[word].items():
                yield f"{pointer}/{word}/{name.replace('~', '~0').replace('/', '~1')}", one
