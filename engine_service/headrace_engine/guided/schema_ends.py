"""Finds schemas that no value satisfies, because it would have to be infinite."""

from __future__ import annotations

from typing import Any

from headrace_engine.guided.schema_walk import referred, schemas_of

_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Satisfiability:
    """Satisfiability of the schemas of a document, judged by their structure.

    A schema reported as unsatisfiable certainly is; one that is not reported may still be.

    Args:
        root: the document.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._schemas = list(schemas_of(root))
        self._satisfiable: set[int] = set()
        self._settle()

    def unsatisfiable(self) -> list[str]:
        """Return pointers to the unsatisfiable schemas; the document itself is "#"."""
        if self._root is False:
            return ["#"]
        return [pointer for pointer, schema in self._schemas if id(schema) not in self._satisfiable]

    def _settle(self) -> None:
        """Find the satisfiable schemas, innermost first, until a round finds no more."""
        left = self._schemas[::-1]
        while True:
            rest = [pair for pair in left if not self._note_satisfiable(pair[1])]
            if len(rest) in (0, len(left)):
                return
            left = rest[::-1]

    def _note_satisfiable(self, schema: dict[str, Any]) -> bool:
        if not self._fits(schema):
            return False
        self._satisfiable.add(id(schema))
        return True

    def _may(self, schema: Any) -> bool:
        if isinstance(schema, dict):
            return id(schema) in self._satisfiable
        return schema is not False

    def _fits(self, schema: dict[str, Any]) -> bool:
        if "const" in schema:
            return True
        if isinstance(schema.get("enum"), list):
            return bool(schema["enum"])
        return self._joined(schema) and any(self._has(kind, schema) for kind in _types(schema))

    def _joined(self, schema: dict[str, Any]) -> bool:
        either = all(
            any(map(self._may, schema[word])) for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)
        )
        whole = schema.get("allOf")
        target = schema.get("$ref")
        if isinstance(target, str) and not self._may(referred(self._root, target)):
            return False
        return either and (not isinstance(whole, list) or all(map(self._may, whole)))

    def _has(self, kind: Any, schema: dict[str, Any]) -> bool:
        if kind == "object":
            return self._has_properties(schema)
        return kind != "array" or self._has_items(schema)

    def _has_properties(self, schema: dict[str, Any]) -> bool:
        required, properties = schema.get("required"), schema.get("properties")
        if not isinstance(required, list):
            return True
        known = properties if isinstance(properties, dict) else {}
        other = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
        return all(self._may(known.get(name, other)) for name in required if isinstance(name, str))

    def _has_items(self, schema: dict[str, Any]) -> bool:
        fewest = schema.get("minItems")
        if not isinstance(fewest, int) or fewest < 1:
            return True
        items = schema.get("items", True)
        first = schema.get("prefixItems", items if isinstance(items, list) else [])
        others = schema.get("additionalItems", True) if isinstance(items, list) else items
        known = first if isinstance(first, list) else []
        return all(map(self._may, known[:fewest])) and (fewest <= len(known) or self._may(others))


def _types(schema: dict[str, Any]) -> tuple[Any, ...]:
    kind = schema.get("type")
    if isinstance(kind, list):
        return tuple(kind)
    return _TYPES if kind is None else (kind,)
