"""Values that strict functions allow arrive as what they are, in every format of calls; schemas cost linear time."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from headrace_engine.guided.calls.answer import grammar_of_calls
from headrace_engine.guided.calls.wanted import WantedCalls
from headrace_proto.pure.answers.formats import CALLS
from headrace_proto.pure.answers.literal_calls import LiteralCalls
from headrace_proto.pure.answers.parameter_calls import ParameterCalls
from support.parted import parted
from unit.guided.test_call_grammars import Letters, accepts, chain, drawn, guide

PARAMETERS = [name for name, form in CALLS.items() if isinstance(form.layout, ParameterCalls)]
LITERALS = [name for name, form in CALLS.items() if isinstance(form.layout, LiteralCalls)]
FORMATS = [name for name, form in CALLS.items() if form.layout is not None or name == "harmony"]


def strict(calls: str, parameters: Any, **more: Any) -> WantedCalls:
    tool = json.dumps({"function": {"name": "f", "parameters": parameters}})
    return WantedCalls(calls, "", opened=False, tools=(tool,), strict=("f",), required=True, parallel=False, **more)


def written(calls: str, key: str, value: str) -> str:
    """A call with one parameter, as a format with parameters writes it."""
    layout = CALLS[calls].layout
    assert isinstance(layout, ParameterCalls)
    between = f"{layout.key_close}{layout.value_opens[-1]}" if layout.value_opens else layout.key_close
    line = "\n" if layout.line_breaks else ""
    text = f"{layout.open}f{layout.name_end}{layout.key_open}{key}{between}{line}{value}{line}{layout.value_close}"
    begin, end = CALLS[calls].sections[0] if CALLS[calls].sections else ("", "")
    return f"{begin}{text}{layout.close}{end}"


def call_of(calls: str, entries: str) -> str:
    """A call with these arguments, as a format with literals writes it."""
    layout = CALLS[calls].layout
    assert isinstance(layout, LiteralCalls)
    text = f"f{layout.brackets[0]}{entries}{layout.brackets[1]}"
    return f"{layout.open}[{text}]{layout.close}" if layout.listed else f"{layout.open}{text}{layout.close}"


@pytest.mark.parametrize("value", ["1e999", "-1E+400", "7" * 5000, '{"b": [1e999]}'])
@pytest.mark.parametrize("calls", PARAMETERS)
def test_numbers_of_any_size_stay_numbers(calls: str, value: str) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "array", "items": {"type": "number"}}}}
    parameters = {"type": "object", "properties": {"a": schema if value[0] == "{" else {"type": "number"}}}
    text = written(calls, "a", value)
    assert accepts(Letters([]), strict(calls, parameters), text)
    [(name, arguments)] = parted(calls, text, tools=[{"function": {"name": "f", "parameters": parameters}}])
    assert (name, arguments) == ("f", f'{{"a": {value}}}')


def held(calls: str, schema: Any) -> tuple[WantedCalls, list[Any]]:
    """Calls of a function with one strict parameter, and its tools."""
    parameters = {"type": "object", "properties": {"a": schema}}
    return strict(calls, parameters), [{"function": {"name": "f", "parameters": parameters}}]


@pytest.mark.parametrize("calls", PARAMETERS)
def test_strings_cannot_hold_what_would_end_them(calls: str) -> None:
    layout = CALLS[calls].layout
    assert isinstance(layout, ParameterCalls)
    what, tools = held(calls, {"type": "string"})
    sign = layout.value_opens[0] if layout.value_opens else ""
    for value, accepted in (("x < y", True), (f"x{layout.value_close}y", False)):
        text = written(calls, "a", value).replace(layout.value_opens[-1] if layout.value_opens else "", sign)
        assert accepts(Letters([]), what, text) is accepted
        assert (parted(calls, text, tools=tools)[0] == ("f", json.dumps({"a": value}))) is accepted


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("calls", PARAMETERS)
def test_strings_within_json_may_hold_marks(calls: str, size: int) -> None:
    layout = CALLS[calls].layout
    assert isinstance(layout, ParameterCalls)
    what, tools = held(calls, {"type": "array", "items": {"type": "string"}})
    value = json.dumps([f'x{layout.value_close}"y"\\{layout.value_close}{layout.close}', "z"])
    text = written(calls, "a", value)
    assert accepts(Letters([]), what, text)
    assert parted(calls, text, tools=tools, size=size) == [("f", f'{{"a": {value}}}')]


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("calls", PARAMETERS)
def test_strings_that_never_end_take_nothing_from_later_calls(calls: str, size: int) -> None:
    _, tools = held(calls, {"type": "array"})
    texts = [written(calls, "a", value) for value in ('["x', "[1]", '["y', '["z"]')]
    found = parted(calls, "".join(texts), tools=tools, size=size)
    assert found == [("f", f'{{"a": {value}}}') for value in (json.dumps('["x'), "[1]", json.dumps('["y'), '["z"]')]


@pytest.mark.parametrize("calls", PARAMETERS + LITERALS)
def test_values_of_any_depth_stay_what_they_are(calls: str) -> None:
    value = "[" * 5000 + "1" + "]" * 5000
    layout = CALLS[calls].layout
    text = call_of(calls, f"a{layout.sign}{value}") if isinstance(layout, LiteralCalls) else written(calls, "a", value)
    assert parted(calls, text, tools=held(calls, {"type": "array"})[1]) == [("f", f'{{"a": {value}}}')]


def doubling(length: int) -> dict[str, Any]:
    """A schema with 2 ** length values, each reached by references."""
    pair = {"x", "y"}
    parts = {
        f"d{number}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/d{number + 1}"} for key in sorted(pair)},
            "required": sorted(pair),
            "additionalProperties": False,
        }
        for number in range(length)
    }
    last = {f"d{length}": {"enum": [1]}}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": parts | last}


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(count)}}


@pytest.mark.parametrize("calls", FORMATS)
@pytest.mark.parametrize("schema", [doubling, optional])
def test_grammars_grow_with_their_schemas(calls: str, schema: Any) -> None:
    sizes = [len(grammar_of_calls(strict(calls, schema(count)), {})[0]) for count in (40, 80, 160)]
    assert sizes[2] - sizes[1] < 3 * (sizes[1] - sizes[0])


TREE = {
    "type": "object",
    "properties": {"value": {"enum": ["p", "q"]}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["value"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("calls", LITERALS)
def test_schemas_refer_to_themselves(calls: str) -> None:
    parameters = {**TREE, "$defs": {"tree": TREE} | dict(chain(50, {"$ref": "#/$defs/tree"}))}
    parameters["properties"] = {**TREE["properties"], "more": {"$ref": "#/$defs/d0"}}
    letters, tools, deepest = Letters([]), [{"function": {"name": "f", "parameters": parameters}}], 0
    for seed in range(12):
        text = drawn(letters, guide(letters, strict(calls, parameters)), seed)
        for _, arguments in [] if text is None else parted(calls, text, tools=tools):
            jsonschema.validate(json.loads(arguments), parameters)
            deepest = max(deepest, arguments.count("value"))
    assert deepest > 1


@pytest.mark.parametrize("calls", LITERALS)
def test_optional_arguments_come_in_order(calls: str) -> None:
    layout = CALLS[calls].layout
    assert isinstance(layout, LiteralCalls)

    def call(*names: str) -> str:
        return call_of(calls, (", " if not layout.quotes else ",").join(f"{name}{layout.sign}1" for name in names))

    letters, what = Letters([]), strict(calls, optional(3))
    for names in ((), ("p0",), ("p2",), ("p0", "p2"), ("p1", "p2"), ("p0", "p1", "p2")):
        assert accepts(letters, what, call(*names))
    for names in (("p1", "p0"), ("p0", "p0"), ("p3",)):
        assert not accepts(letters, what, call(*names))
