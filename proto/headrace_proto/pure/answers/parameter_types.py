"""The types of tools' parameters, for formats that write strings without quotation marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Types = Mapping[str, Mapping[str, frozenset[str]]]
"""The JSON types that parameters may have, by the names of function and parameter. Absent: any."""


def types_of(tools: Sequence[Any]) -> Types:
    """Return the types of the parameters of tools, as requests give them: what is sure."""
    found: dict[str, Mapping[str, frozenset[str]]] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            found[name] = _parameters(function.get("parameters"))
    return found


def _parameters(schema: Any) -> dict[str, frozenset[str]]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {key: types for key, one in properties.items() if (types := _allowed(one))}


def _allowed(schema: Any) -> frozenset[str]:
    if not isinstance(schema, dict):
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    strings = isinstance(values, list) and values and all(isinstance(one, str) for one in values)
    return frozenset({"string"}) if strings else frozenset()
