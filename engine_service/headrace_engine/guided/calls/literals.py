"""Calls whose arguments are literals of another language than JSON: Python's, or Gemma's."""

from __future__ import annotations

import json
from typing import Any

from headrace_proto.pure.answers.literal_calls import LiteralCalls

from headrace_engine.guided.calls.keywords import (
    References,
    alternatives_of,
    properties_of,
    refuse_more,
    types_of,
    values_of,
)
from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.calls.names import check_key
from headrace_engine.guided.calls.wanted import Function
from headrace_engine.guided.refusal import refused
from headrace_engine.guided.schema import endless_parts

_STRING = r"""("([^"\\\n]|\\["\\nt])*"|'([^'\\\n]|\\['\\nt])*')"""
_NUMBERS = {"integer": r"-?(0|[1-9][0-9]{0,17})", "number": r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?"}
_CONSTANTS: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
_NAME = r"[A-Za-z_]\w{0,63}"
_MAX_DEPTH = 20


def literal_calls(rules: Rules, layout: LiteralCalls, functions: list[Function], *, several: bool) -> str:
    """Return what follows the mark of a call: see `calls_after_mark`."""
    call = rules.rule(" | ".join(_Literals(rules, layout, one).call() for one in functions))
    if layout.listed:
        more = f'(", " {call})*' if several else ""
        call = f'"[" {call} {more} "]"'
    return f"{call} {rules.literal(layout.close)}" if layout.close else call


class _Literals:
    """The literals of one function's arguments. What references lead to are rules of their own."""

    def __init__(self, rules: Rules, layout: LiteralCalls, function: Function) -> None:
        self._rules, self._layout, self._function = rules, layout, function
        self._python = not layout.quotes
        self._schema = {"type": "object", **function.parameters}
        self._references = References(function, self._schema)
        self._names: dict[int, str] = {}
        self._unwritten: list[tuple[str, Any]] = []
        self._any_name = ""

    def call(self) -> str:
        """Return a call."""
        opened, closed = self._layout.brackets[0], self._layout.brackets[1]
        begin = self._rules.literal(self._function.name + opened)
        if not self._function.strict:
            entry = f"{self._rules.pattern(_NAME)} {json.dumps(self._layout.sign)} {self._any()}"
            return f"{begin} ({entry} ({json.dumps(self._comma)} {entry})*)? {json.dumps(closed)}"
        self._rules.warn(endless_parts(self._schema))
        entries = self._entries(self._schema, self._layout.sign, quoted=False, depth=0)
        while self._unwritten:
            name, schema = self._unwritten.pop()
            self._rules.finish(name, self._value(schema, 0))
        return f"{begin} {entries} {json.dumps(closed)}"

    @property
    def _comma(self) -> str:
        return ", " if self._python else ","

    @property
    def _colon(self) -> str:
        return ": " if self._python else ":"

    def _entries(self, schema: dict[str, Any], sign: str, *, quoted: bool, depth: int) -> str:
        """Return the entries of an object, those that must be there first."""
        known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
        refuse_more(self._function, schema, known)
        properties, required = properties_of(self._function, schema)
        needed = [key for key in properties if key in required]
        others = [key for key in properties if key not in required]

        def entry(key: str) -> str:
            check_key(self._layout, self._function, key, quoted=quoted)
            name = self._string(key) if quoted else self._rules.literal(key)
            return f"{name} {json.dumps(sign)} {self._value(properties[key], depth + 1)}"

        comma = json.dumps(self._comma)
        if needed:
            return f" {comma} ".join(map(entry, needed)) + "".join(f" ({comma} {entry(key)})?" for key in others)
        chains, rest = [], ""
        for one in map(self._rules.rule, map(entry, reversed(others))):
            chains.append(f"{one} {rest}")
            rest = self._rules.rule(f"({comma} {one})? {rest}")
        return f"({' | '.join(reversed(chains))})?" if chains else ""

    def _value(self, schema: Any, depth: int) -> str:
        if depth > _MAX_DEPTH:
            raise refused(f"of {self._function.name} cannot be strict: it is nested more than {_MAX_DEPTH} deep")
        target = self._references.resolved(schema)
        if target is True or target == {}:
            return self._any()
        if target is not schema:
            return self._referred(target)
        if (values := values_of(schema)) is not None:
            return self._rules.rule(" | ".join(map(self._constant, values)))
        if "anyOf" in schema:
            refuse_more(self._function, schema, {"anyOf"})
            found = alternatives_of(self._function, schema)
            return self._rules.rule(" | ".join(self._value(one, depth + 1) for one in found))
        kinds = types_of(self._function, schema)
        return self._rules.rule(" | ".join(self._typed(kind, schema, depth) for kind in kinds))

    def _referred(self, schema: dict[str, Any]) -> str:
        """Return the rule of a schema that references lead to. It is written later: it may lead to itself."""
        if id(schema) not in self._names:
            self._names[id(schema)] = self._rules.begin()
            self._unwritten.append((self._names[id(schema)], schema))
        return self._names[id(schema)]

    def _typed(self, kind: str, schema: dict[str, Any], depth: int) -> str:
        if kind == "object":
            if "properties" not in schema:
                refuse_more(self._function, schema, {"type", "additionalProperties"})
                return self._any_object()
            entries = self._entries(schema, self._colon, quoted=self._python, depth=depth)
            return f'"{{" {entries} "}}"'
        if kind == "array":
            refuse_more(self._function, schema, {"type", "items"})
            item = self._value(schema.get("items", {}), depth + 1)
            return f'"[" ({item} ({json.dumps(self._comma)} {item})*)? "]"'
        refuse_more(self._function, schema, {"type"})
        return self._scalar(kind)

    def _scalar(self, kind: str) -> str:
        if kind in _NUMBERS:
            return self._rules.pattern(_NUMBERS[kind])
        if kind == "string":
            return self._any_string()
        values = _CONSTANTS.get(kind)
        if values is None:
            raise refused(f'of {self._function.name} has the type "{kind[:32]}", which JSON Schema does not have')
        return f"({' | '.join(map(self._constant, values))})"

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return self._string(value)
        if value is None or isinstance(value, (bool, int, float)):
            return json.dumps(repr(value) if self._python else json.dumps(value))
        text = "a list or an object as a constant cannot be enforced in the format in which this model writes calls"
        raise refused(f"of {self._function.name} cannot be strict: {text}")

    def _string(self, text: str) -> str:
        if self._python:
            return json.dumps(json.dumps(text, ensure_ascii=False))
        if self._layout.quotes in text:
            what = f"a constant with {self._layout.quotes} cannot be written in the format"
            raise refused(f"of {self._function.name} cannot be strict: {what} in which this model writes calls")
        return self._rules.literal(self._layout.quotes + text + self._layout.quotes)

    def _any_string(self) -> str:
        if self._python:
            return self._rules.pattern(_STRING)
        return self._rules.rule(f"{self._rules.literal(self._layout.quotes)} {self._rules.upto(self._layout.quotes)}")

    def _any_object(self) -> str:
        name = self._any_string() if self._python else self._rules.pattern(_NAME)
        entry = f"{name} {json.dumps(': ' if self._python else ':')} {self._any()}"
        return f'"{{" ({entry} ({json.dumps(self._comma)} {entry})*)? "}}"'

    def _any(self) -> str:
        """Return any value."""
        if not self._any_name:
            name = self._any_name = self._rules.begin()
            item = f'"[" ({name} ({json.dumps(self._comma)} {name})*)? "]"'
            scalars = [self._scalar(kind) for kind in ("string", "number", "boolean", "null")]
            self._rules.finish(name, " | ".join([*scalars, item, self._any_object()]))
        return self._any_name
