"""The schemas within a JSON Schema: what is a schema, what is the name of a property, and what is data."""

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
"""Those whose value is a list of schemas; `items` is in older drafts."""

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Those whose value has schemas by names."""


def depth_of(value: Any) -> int:
    """Return how deep lists and objects lie in each other."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def schemas_of(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema that is an object, each once, with a pointer to it; also those that only a $ref reaches."""
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
    """Return what a reference within a document leads to; None: nothing, or it leads elsewhere."""
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
            yield from ((f"{pointer}/{word}/{place}", one) for place, one in enumerate(schema[word]))
    for word in _NAMED:
        if isinstance(schema.get(word), dict):
            for name, one in schema[word].items():
                yield f"{pointer}/{word}/{name.replace('~', '~0').replace('/', '~1')}", one
