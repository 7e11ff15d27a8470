"""The grammar of one call, by the layout of its format, without the mark that it begins with."""

from __future__ import annotations

import json
from typing import Any

from headrace_proto.pure.answers.formats import Layout
from headrace_proto.pure.answers.json_calls import JsonCalls
from headrace_proto.pure.answers.named_calls import EitherCalls, NamedCalls
from headrace_proto.pure.answers.parameter_calls import ParameterCalls

from headrace_engine.guided.calls.keywords import properties_of, refuse_more, values_of
from headrace_engine.guided.calls.lark import Rules
from headrace_engine.guided.calls.literals import literal_calls
from headrace_engine.guided.calls.names import check_key
from headrace_engine.guided.calls.wanted import Function
from headrace_engine.guided.refusal import refused

_BLANK = r"[ \n]{0,2}"


def calls_after_mark(rules: Rules, layout: Layout, functions: list[Function], *, several: bool) -> str:
    """Return what follows the mark of a call, up to the last one that needs no mark of its own.

    Args:
        several: more than one call may follow one mark, where the format has lists.
    """
    if isinstance(layout, EitherCalls):
        listed = _json_calls(rules, layout.json, functions, several=several)
        return rules.rule(f"{listed} | {_one_of(rules, [_named(rules, layout.named, one) for one in functions])}")
    if isinstance(layout, JsonCalls):
        return _json_calls(rules, layout, functions, several=several)
    if isinstance(layout, NamedCalls):
        return _one_of(rules, [_named(rules, layout, one) for one in functions])
    if isinstance(layout, ParameterCalls):
        return _one_of(rules, [_parameters(rules, layout, one) for one in functions])
    return literal_calls(rules, layout, functions, several=several)


def _one_of(rules: Rules, bodies: list[str]) -> str:
    return rules.rule(" | ".join(bodies))


def arguments(rules: Rules, function: Function) -> str:
    """Return the arguments of a function as an object of JSON."""
    return rules.json(_object(function) if function.strict else {"type": "object"})


def _object(function: Function) -> dict[str, Any]:
    return {"type": "object", **function.parameters}


def _json_calls(rules: Rules, layout: JsonCalls, functions: list[Function], *, several: bool) -> str:
    call = _one_of(rules, [_json_call(rules, layout, one) for one in functions])
    blank = rules.pattern(_BLANK)
    if layout.listed:
        more = f'("," {blank} {call})*' if several else ""
        call = f'"[" {blank} {call} {more} {blank} "]"'
    elif not layout.open:
        call = f'{call} (";" {blank} {call})*' if several else call
    close = f"{blank} {rules.literal(layout.close)}" if layout.close else ""
    return rules.rule(f"{blank} {call} {close}")


def _json_call(rules: Rules, layout: JsonCalls, function: Function) -> str:
    name, found = json.dumps(function.name, ensure_ascii=False), arguments(rules, function)
    if not layout.name:
        return f'{json.dumps("{" + name + ": ")} {found} "}}"'
    begin = f'{{"{layout.name}": {name}, "{layout.arguments}": '
    return f'{json.dumps(begin)} {found} "}}"'


def _named(rules: Rules, layout: NamedCalls, function: Function) -> str:
    head = f"functions.{function.name}:" if layout.numbered else function.name
    number = rules.pattern("[0-9]{1,4}") if layout.numbered else ""
    close = rules.literal(layout.close) if layout.close else ""
    parts = (rules.literal(head), number, rules.literal(layout.middle), arguments(rules, function), close)
    return " ".join(filter(None, parts))


def _parameters(rules: Rules, layout: ParameterCalls, function: Function) -> str:
    blank = rules.pattern(_BLANK)
    given = given_parameters(rules, layout, function) if function.strict else f"({_any(rules, layout)})*"
    head = rules.literal(function.name + layout.name_end)
    return f"{head} {blank} {given} {rules.literal(layout.close)}"


def given_parameters(rules: Rules, layout: ParameterCalls, function: Function) -> str:
    """Return the parameters of a function, in the order of its schema."""
    schema, found = _object(function), []
    refuse_more(function, schema, {"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
    properties, required = properties_of(function, schema)
    for key, one in properties.items():
        value = _value(rules, layout, function, schema, key, one)
        found.append(value if key in required else f"({value})?")
    return " ".join(found)


def _value(rules: Rules, layout: ParameterCalls, function: Function, root: Any, key: str, schema: Any) -> str:
    check_key(layout, function, key)
    blank, close = rules.pattern(_BLANK), ("\n" if layout.line_breaks else "") + layout.value_close
    text = _is_string(schema)
    opens = list(layout.value_opens)
    opened = opens[0 if text else -1] if opens else ""
    between = (
        f"{rules.literal(layout.key_close)} {blank} " if len(opens) == 1 else rules.literal(layout.key_close) + " "
    )
    head = f"{rules.literal(layout.key_open + key)} {between}"
    head += rules.literal(opened + ("\n" if layout.line_breaks else "")) if opened or layout.line_breaks else ""
    if not text:
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        value = rules.json({**schema, **shared} if isinstance(schema, dict) else schema)
        return f"{head} {value} {rules.literal(close)} {blank}"
    if (values := values_of(schema)) is not None:
        texts = [one for one in values if isinstance(one, str)]
        if not texts or any(layout.value_close in one for one in texts):
            what = "cannot be written as texts in the format in which this model writes calls"
            raise refused(f'of {function.name} cannot be strict: the values of "{key[:64]}" {what}')
        return f"{head} ({' | '.join(map(rules.literal, texts))}) {rules.literal(close)} {blank}"
    refuse_more(function, schema, {"type"})
    return f"{head} {rules.upto(layout.value_close)} {blank}"


def _is_string(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.get("type") is not None:
        return bool(schema["type"] == "string")
    values = values_of(schema)
    return values is not None and all(isinstance(one, str) for one in values)


def _any(rules: Rules, layout: ParameterCalls) -> str:
    blank, key = rules.pattern(_BLANK), rules.pattern(r'[^<>"\s]{1,64}')
    opens = " | ".join(rules.literal(one) for one in layout.value_opens)
    line = rules.literal("\n") if layout.line_breaks else ""
    parts = (
        rules.literal(layout.key_open),
        key,
        rules.literal(layout.key_close),
        blank if len(layout.value_opens) == 1 else "",
        f"({opens})" if opens else "",
        line,
        rules.upto(layout.value_close),
        blank,
    )
    return " ".join(filter(None, parts))
